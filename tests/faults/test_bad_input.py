"""Bad input over every key of every group: one line, exit code 2, no work, no folder left.

Each line is a command and, after ``->``, what its message must say: the key, and what is allowed.
"""

import shlex

import pytest

TABLE = """
# top level
lenght=3 -> lenght|length
lenght=3 variant=windowed -> Did you mean 'length'
nothing=1 -> nothing: no such key
+nothing=1 -> nothing: no such key
+train.nothing=1 -> train.nothing: no such key
length=0 -> length|at least 1
length=-5 -> length|at least 1
length=abc -> length|whole number
length=1.5 -> length|whole number
length=null -> length|whole number
length=true -> length|whole number
length=[16] -> length|whole number
length={a:1} -> length|whole number
length=99999999999999999999 -> length|whole number
length= -> length|whole number
length=1,2 -> length=1,2|-m
-m length=16,0 -> length|at least 1
seed=-1 -> seed|at least 0
seed=x -> seed|whole number
seed=null -> seed|whole number
seed=1.0 -> seed|whole number
~seed -> seed: a value is needed
~limits -> limits: a value is needed
measure=speed -> measure|accuracy, cost, both
measure=acuracy -> Did you mean 'accuracy'
measure=null -> measure
device=gpu -> device|cpu, cuda
device=cuda -> device|cpu
device=cuda:99 -> device
device=mps -> device|cpu
device=null -> device
device=1 -> device
dtype=float31 -> dtype|float32
dtype=int8 -> dtype|float32
threads=0 -> threads|at least 1
threads=many -> threads|whole number
threads=-1 -> threads|at least 1
limits.memory_gib=0 -> limits.memory_gib|above 0
limits.memory_gib=much -> limits.memory_gib|above 0
limits.seconds=-1 -> limits.seconds|above 0
limits.seconds=nan -> limits.seconds|above 0
limits.second=3 -> limits.second|Did you mean 'seconds'
+limits.second=3 -> limits.second|Did you mean 'seconds'
limits=8 -> limits
report=3 -> report
study=a/b -> study|letters
study=.. -> study|letters
study= -> study|letters
study=null -> study|letters
study='a b' -> study|letters
study=[a] -> study|letters
results=null -> results
results='' -> results
results=/dev/null/x -> results|cannot write
results=/proc/x -> results|cannot write
action=rn -> action|Did you mean 'run'
action=null -> action|run, report
action=7 -> action|run, report
# groups
variant=windwed -> variant|Did you mean 'windowed'
variants=full -> Did you mean 'variant'
task=recal -> task|Did you mean 'recall'
model=tiny -> model|small
train=fast -> train|default
cost=slow -> cost|default
experiment=quikstart -> experiment|Did you mean 'quickstart'
experiment=quikstart length=16,32 -> experiment|Did you mean 'quickstart'
probes=score -> probes|Did you mean 'scores'
hydra/launcher=wrkers -> hydra/launcher|Did you mean 'workers'
hydra/sweeper=part -> hydra/sweeper|parts
variant=full,windowed -> -m
-m variant=full,windwed -> Did you mean 'windowed'
# variants
variant=windowed variant.window=-1 -> variant.window|at least 1
variant=windowed variant.window=0 -> variant.window|at least 1
variant=windowed variant.window=x -> variant.window
variant=windowed variant.window=2.5 -> variant.window
variant=windowed variant.window=null -> variant.window
variant=windowed variant.window=[1] -> variant.window
variant=windowed variant.windw=8 -> variant.windw|window
variant=windowed +variant.windw=8 -> windw
variant=full variant.window=8 -> variant.window: no such key
-m variant=full,windowed variant.window=8 -> variant.window: no such key
variant=local_global variant.global_tokens=-1 -> variant.global_tokens
variant=local_global variant.global_tokens=few -> variant.global_tokens
variant=chunked variant.window=0 -> variant.window
variant=interleaved variant.every=0 -> variant.every
variant=interleaved variant.every=9 -> model.n_layers
variant=interleaved variant@variant.local=nothing -> nothing
variant=bigbird variant.window=-1 -> variant.window
variant=dilated variant.window=0 -> variant.window
variant=strided variant.window=0 -> variant.window
variant=full variant._target_=variants.full.Fool -> variants.full.Fool
variant=full variant._target_=variants.ful.Full -> variants.ful
variant=full variant._target_=os.system -> variant
variant=full variant._target_=7 -> variant
variant=local_atention -> variant|Did you mean 'external/local_attention'
variant=external/longfrmer -> variant|Did you mean 'external/longformer'
variant=external/function variant.target=nowhere.f -> variant.target|no package 'nowhere'
variant=external/function variant.target=math.sine -> variant.target|Did you mean 'sin'
variant=external/function variant.target=math.pi -> variant.target|float
variant=external/function variant.target=sqrt -> variant.target|dotted path
variant=external/function variant.target=7 -> variant.target
variant=external/function variant.given=[casual] -> variant.given|Did you mean 'causal'
variant=external/function variant.given=[scale] -> variant.direction|causal or bidirectional
variant=external/function variant.given=[] variant.direction=back -> variant.direction|causal
variant=external/module variant.keywords={bais:false} -> variant|keywords.bais|Did you mean 'bias'
variant=external/module variant.given=[scale] -> variant.given|d_model
variant=external/module task=sentences -> causal|torch.nn.Linear is causal
variant=external/longformer task=sentences variant.attention_window=3 -> attention_window|even
variant=external/longformer -> causal|bidirectional; allowed: False
variant=external/flex_attention -> measure|no backward pass on the CPU
# tasks
task.pairs=0 -> task.pairs
task.pairs=-1 -> task.pairs
task.pairs=100 -> task.pairs
task.pairs=x -> task.pairs
task.vocab=2 -> task.vocab
task.vocab=x -> task.vocab
task.power=0 -> task.power
task.power=x -> task.power
task.filler=none -> task.filler|zero
task.filler_vocab=0 task.filler=own -> task.filler_vocab
task.validation_size=0 -> task.validation_size
task.test_size=-1 -> task.test_size
task.test_length=1 -> task
task.pars=3 -> task.pars|pairs
+task.pars=3 -> pars
task=text task.path=/no/such/folder -> task.path|/no/such/folder
task=text task.path=7 -> task.path
task=text task.test_size=0 -> task.test_size
task=text length=100000000 -> task
# model
model.d_model=0 -> d_model
model.d_model=x -> d_model
model.d_model=7 -> d_model
model.n_heads=0 -> n_heads
model.n_heads=3 -> n_heads|divisor
model.kv_heads=3 -> kv_heads
model.n_layers=0 -> model.n_layers
model.n_layers=x -> model.n_layers
model.mlp_ratio=-1 -> model.mlp_ratio
model.mlp_ratio=x -> model.mlp_ratio
model.positions=rotory -> rotary
model.positions=null -> positions
variant=gru model.positions=rotary -> positions
model.conv=-1 -> model.conv
model.conv=x -> model.conv
model.dropout=2 -> dropout
model.dropout=x -> dropout
model.scale=x -> scale
model.tied=maybe -> tied
model.d_modl=8 -> model.d_modl|Did you mean 'd_model'
# training
train.steps=0 -> train.steps
train.steps=-1 -> train.steps
train.steps=many -> train.steps|whole number
train.batch=0 -> train.batch
train.batch=x -> train.batch|whole number
train.lr=0 -> train.lr
train.lr=fast -> train.lr|number
train.weight_decay=-1 -> train.weight_decay
train.betas=[0.9] -> train.betas
train.betas=[0.9,2] -> train.betas
train.betas=0.9 -> train.betas
train.warmup=-1 -> train.warmup
train.clip=0 -> train.clip
train.schedule=cosin -> train.schedule|cosine
train.eval_every=0 -> train.eval_every
train.eval_batch=0 -> train.eval_batch
train.stop_at=x -> train.stop_at
train.stesp=3 -> train.stesp|Did you mean 'steps'
+train.seed=3 -> train.seed
# cost
measure=cost cost.scope=layr -> cost.scope|layer
measure=cost cost.batch=0 -> batch
measure=cost cost.batch=x -> cost.batch|whole number
measure=cost cost.budget_seconds=-1 -> budget_seconds
measure=cost cost.interval=0 -> interval
measure=cost cost.least=0 -> cost.least
measure=cost cost.most=x -> cost.most|whole number
measure=cost cost.memory=perhaps -> cost.memory|true or false
measure=cost cost.scop=op -> cost.scop|Did you mean 'scope'
# probes
measure=probe -> probes: found none|measure=probe needs some|probes=scores
measure=probe probes=scores probes.scores.rows=0 -> probes.scores.rows: found 0|of at least 1
measure=probe probes=scores probes.scores.keys=1 -> probes.scores.keys|of at least 2
probes=heads probes.heads.sequences=-1 -> probes.heads.sequences|a whole number of at least 1
probes=heads probes.heads.batch=0 -> probes.heads.batch: found 0
probes=permutation probes.permutation.sequences=0 -> probes.permutation.sequences|at least 1
measure=probe probes=path 'probes.path.at=[0]' -> at: found [0]|whole numbers of at least 2
measure=probe probes=path 'probes.path.at=[]' -> probes.path.at|a list of one or more
measure=probe probes=path '~probes.path.at' -> probes.path.at: a value is needed|a list
probes=lengths 'probes.lengths.at=[-3]' -> probes.lengths.at|whole numbers of at least 1
probes=lengths probes.lengths.task=3 -> probes.lengths.task|a table of settings or null
probes=maps probes.maps.sequence=-1 -> probes.maps.sequence|from 0 to 999
probes=maps probes.maps.sequence=9999 -> probes.maps.sequence|from 0 to 999
probes=maps 'probes.maps.tokens=[]' -> probes.maps.tokens|one or more whole numbers|or null
probes=maps 'probes.maps.tokens=[9999]' -> probes.maps.tokens|from 0 to
+probes.mine._target_=os.getcwd -> probes.mine._target_: os.getcwd takes ()|(subject, *, option=...)
+probes.mine._target_=math.pi -> probes.mine._target_: math.pi is no function
# how it is written
length -> length
=3 -> error
'x=[1,2' -> x=[1,2
'length=(' -> length
'length=16 17' -> length
'length=${nothing}' -> nothing
'study=${' -> study
length=range(3) -> -m
-m hydra.sweeper.parts=3 -> hydra.sweeper.parts
-m hydra.sweeper.parts=[3] -> hydra.sweeper.parts
-m hydra.sweeper.params=3 -> hydra.sweeper.params
-m hydra.sweeper.parts=[] -> hydra.sweeper.parts
-m 'hydra.sweeper.parts=[{lenght:8}]' -> Did you mean 'length'
-m 'hydra.sweeper.parts=[{variant:windwed}]' -> Did you mean 'windowed'
-m hydra.sweeper.nothing=3 -> hydra.sweeper.nothing
-m study=a,b -> study
-m action=run,list -> action
hydra.mode=both -> hydra.mode
hydra.searchpath=[file:///no/such/folder] -> hydra.searchpath|/no/such/folder
hydra.searchpath=7 -> hydra.searchpath
--nothing -> --nothing
--config-name=nothing -> nothing
--config-dir=/no/such/folder -> /no/such/folder
hydra/launcher=workers hydra.launcher.n_jobs=x -> n_jobs
-m hydra/launcher=workers hydra.launcher.n_jobs=0 seed=0,1 -> hydra.launcher.n_jobs: found 0
threads=100000 -> threads|allowed: up to
measure=accuracy cost.scope=layr -> cost.scope|Did you mean 'layer'
measure=accuracy cost.batch=0 -> cost.batch
measure=cost train.steps=-1 -> train.steps
train.betas=3 -> train.betas|a list of numbers
hydra/launcher=workers hydra.launcher.jobs=2 -> hydra.launcher.jobs
"""

FUNCTION = (
    "variant=external/function variant.given=[] variant.direction=causal "
    "variant.target=third_party_targets"
)
MODULE = "variant=external/module variant.given=[{dim:d_model}] variant.target=third_party_targets"
LOCAL = "variant=interleaved variant@variant.local=external/function variant.local"
TARGETS = f"""
{MODULE}.Needs variant.keywords.heads=2 -> variant.keywords.heads|+variant.keywords.heads=VALUE
{MODULE}.Needs variant.keywords={{head:2}} -> variant.keywords.head: |Did you mean 'heads'
{MODULE}.Needs -> variant.target: |needs heads
{MODULE}.Fails -> variant.target: |raises RuntimeError: no weights
{MODULE}.Three -> variant.target: |Three.forward needs k and v
variant=external/module variant.target=torch.nn.GRU -> variant.target: |argument 'in_features'
{FUNCTION}.casual -> variant.target: |Did you mean 'causal'
{FUNCTION}.two -> variant.target: |takes q, k only
{FUNCTION}.nothing -> variant.target: |nothing returned None
{FUNCTION}.half measure=cost -> variant.target: |float16 for inputs of float32
{FUNCTION}.nan_at_three measure=cost -> variant.target: |position 3 of 64
{FUNCTION}.both -> variant.direction: found causal|looks ahead
{FUNCTION}.ignores variant.given=[{{is_causal:causal}}] variant.direction=null -> .is_causal|ahead
{LOCAL}.given=[] {LOCAL.split()[-1]}.direction=causal {LOCAL.split()[-1]}.target=math.sin -> takes x
"""

ROWS = [line for line in (TABLE + TARGETS).splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("row", ROWS)
def test_bad_input_is_one_line(command, row):
    text, _, told = row.rpartition(" -> ")
    arguments = shlex.split(text)
    ended = command(*arguments, results=not any(a.startswith("results=") for a in arguments))
    assert ended.code == 2, ended
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 700
    for part in told.split("|"):
        assert part in line
    assert ended.out == ""
    assert list(command.folder.iterdir()) == []


def test_there_are_more_than_a_hundred():
    assert len(ROWS) > 100
