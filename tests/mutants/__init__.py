"""Wrong variants, each with a fault seen in public or likely, and the check that must catch it.

``python -m tests.mutants`` prints which checks catch which.
"""

from functools import partial

from tests.mutants import decoding, kernels, rules, states

WINDOW = {"window": 32}
GLOBALS = {"window": 32, "global_tokens": 4}

MUTANTS = {
    # factory: the check that must catch it
    partial(rules.OneKeyMore, **WINDOW): "check_window",
    partial(rules.OneKeyLess, **WINDOW): "check_window",
    partial(rules.WindowOnEachSide, **WINDOW): "check_window",
    partial(rules.WithoutItself, **WINDOW): "check_window",
    partial(rules.StrideForWindow, **WINDOW): "check_window",
    partial(rules.WrongOperator, **GLOBALS): "check_window",
    partial(rules.NoGlobals, **GLOBALS): "check_global_tokens",
    partial(rules.DeafGlobals, **GLOBALS): "check_global_tokens",
    partial(rules.OneGlobalMore, **GLOBALS): "check_global_tokens",
    partial(rules.GlobalsAtTheEnd, **GLOBALS): "check_global_tokens",
    partial(rules.LongWindowForgetsItsStart, **WINDOW): "check_long_window_is_full",
    partial(rules.AnyWindow, **WINDOW): "check_bad_arguments",
    partial(rules.SwallowsArguments, **WINDOW): "check_unknown_argument",
    partial(rules.WrongCount, **WINDOW): "check_keys_per_query",
    partial(kernels.FutureSeen, **WINDOW): "check_causality",
    partial(kernels.FutureInTheMean, **WINDOW): "check_causality",
    partial(kernels.WrapsAround, **WINDOW): "check_receptive_field",
    partial(kernels.StrideForChunks, **WINDOW): "check_receptive_field",
    partial(kernels.LengthMustDivide, **WINDOW): "check_every_length",
    partial(kernels.PaddedKeysSeen, **WINDOW): "check_padded_equals_alone",
    partial(kernels.PaddedContentSeen, **WINDOW): "check_padding_changes_nothing",
    partial(kernels.PaddedOutputsLeft, **WINDOW): "check_padded_outputs_are_zero",
    partial(kernels.BlindRowsNan, **WINDOW): "check_blind_queries",
    partial(kernels.BlindRowsMean, **WINDOW): "check_blind_queries",
    partial(kernels.SmallMaskNumber, **WINDOW): "check_large_scores",
    partial(kernels.HalfPrecisionOverflow, **WINDOW): "check_large_scores",
    partial(kernels.LowPrecisionInside, **WINDOW): "check_float32",
    partial(kernels.AlwaysFloat32, **WINDOW): "check_shape_dtype_device",
    partial(kernels.CostUnchanged, **WINDOW): "check_cost_follows_the_rule",
    kernels.ScaleIgnored: "check_scale",
    kernels.HeadsMixed: "check_equals_oracle",
    kernels.SharedHeadsInWrongOrder: "check_kv_heads",
    kernels.RotaryOnKeysOnly: "check_equals_oracle",
    kernels.PositionsForgotten: "check_permutation",
    partial(kernels.KeysDetached, **WINDOW): "check_gradients",
    partial(kernels.BatchNormalised, **WINDOW): "check_batch_independence",
    partial(kernels.InputChanged, **WINDOW): "check_input_not_modified",
    partial(states.DropoutInEvaluation, **WINDOW): "check_dropout",
    partial(states.NoDropout, **WINDOW): "check_dropout",
    partial(states.NoisyTraining, **WINDOW): "check_train_equals_eval",
    states.Redrawn: "check_same_call_same_bits",
    states.HashedBlocks: "check_same_bits_in_another_process",
    partial(states.StateNotSaved, **WINDOW): "check_state_dict",
    partial(states.StaleLengths, **WINDOW): "check_same_call_same_bits",
    states.GlobalSeed: "check_same_seed_same_bits",
    states.InferenceTensorKept: "check_same_without_grad",
    partial(decoding.RingOneShort, **WINDOW): "check_decoding",
    decoding.EveryTokenIsTheFirst: "check_decoding",
    partial(decoding.StaleEntriesSeen, **WINDOW): "check_decoding",
    partial(decoding.CacheGrows, **WINDOW): "check_cache_size",
    states.BackwardRecurrence: "check_causality",
    states.Unnamed: "check_display",
}


def name_of(factory):
    return getattr(factory, "func", factory).__name__
