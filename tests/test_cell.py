"""The key names what changes a result and nothing else; a cell always ends in a record."""

import copy

import pytest

from spanwise import cell, config, isolation, records

CONFIG = {
    "action": "run",
    "study": "s",
    "results": "results",
    "measure": "accuracy",
    "length": 16,
    "seed": 0,
    "device": "cpu",
    "dtype": "float32",
    "threads": None,
    "limits": {"memory_gib": 8, "seconds": 3600},
    "report": {},
    "walkthrough": {},
    "probes": {},
    "variant": {"_target_": "variants.windowed.Windowed", "window": 4},
    "task": {"_target_": "tasks.recall.Recall", "pairs": 1},
    "model": {"d_model": 8},
    "train": {"steps": 2, "betas": [0.9, 0.95]},
    "cost": {"scope": "layer"},
}
CHOICES = {"variant": "windowed", "task": "recall", "model": "small"}


def changed(path, value, base=CONFIG):
    new = copy.deepcopy(base)
    *parents, last = path.split(".")
    place = new
    for name in parents:
        place = place[name]
    place[last] = value
    return new


def key(settings=CONFIG, choices=CHOICES):
    return config.key_of(settings, choices)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("measure", "cost"),
        ("measure", "both"),
        ("length", 32),
        ("seed", 1),
        ("device", "cuda"),
        ("dtype", "float64"),
        ("threads", 1),
        ("variant.window", 5),
        ("variant._target_", "variants.chunked.Chunked"),
        ("task.pairs", 2),
        ("model.d_model", 16),
        ("train.steps", 3),
        ("probes", {"norms": {}}),
        ("train.betas", [0.9, 0.99]),
    ],
)
def test_what_changes_the_result_changes_the_key(path, value):
    assert key(changed(path, value)) != key()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("study", "other"),
        ("results", "/elsewhere"),
        ("action", "report"),
        ("limits.seconds", 1),
        ("limits.memory_gib", None),
        ("report", {"title": "x"}),
        ("walkthrough", {"tokens": "a b"}),
        ("cost.scope", "model"),
    ],
)
def test_what_does_not_change_the_result_does_not_change_the_key(path, value):
    assert key(changed(path, value)) == key()


def test_settings_of_training_do_not_change_a_cost_cell():
    cost = changed("measure", "cost")
    assert key(changed("train.steps", 3, cost)) == key(cost)
    assert key(changed("cost.scope", "model", cost)) != key(cost)


def test_the_order_of_keys_does_not_change_the_key():
    backwards = {name: CONFIG[name] for name in reversed(CONFIG)}
    backwards["variant"] = dict(reversed(CONFIG["variant"].items()))
    assert key(backwards) == key()


def test_the_choice_that_names_a_row_is_in_the_key():
    assert key(choices=CHOICES | {"variant": "my_windowed"}) != key()
    assert key(choices=CHOICES | {"model": "recall"}) == key()


def test_the_key_is_the_same_in_every_version():
    # A change here makes every finished cell of every study be done again: not by accident.
    assert key() == "bbd4c9ee7136b964b63d623f0af3e8cc4c0008875976432ffe5775935e5f8d76"


def outcomes(monkeypatch, **by_phase):
    asked = []

    def call(function, payload, **limits):
        asked.append((function, payload["threads"], limits))
        return by_phase[function.rpartition(":")[2]]

    monkeypatch.setattr(isolation, "call", call)
    return asked


OK = isolation.Outcome("ok", {"row": {"accuracy": 0.5}, "display": {}, "visibility": None})


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (isolation.Outcome("error", message="m", kind="RuntimeError", trace="t"), "error"),
        (isolation.Outcome("error", message="m", kind="Diverged", trace="t"), "diverged"),
        (isolation.Outcome("oom", message="m", trace="t"), "oom"),
        (isolation.Outcome("timeout", message="m", trace="t"), "timeout"),
    ],
)
def test_every_end_is_a_record(monkeypatch, tmp_path, outcome, status):
    outcomes(monkeypatch, accuracy=outcome)
    assert cell.run(CONFIG, CHOICES, tmp_path) == status
    record = records.read(records.path_of(tmp_path, key()))
    assert (record["status"], record["message"], record["traceback"]) == (status, "m", "t")
    assert record["config"]["length"] == 16
    assert record["choices"] == CHOICES


def test_what_was_measured_before_a_failure_is_kept(monkeypatch):
    failed = isolation.Outcome("oom", message="out of memory")
    outcomes(monkeypatch, accuracy=OK, cost=failed)
    record = cell.measure(changed("measure", "both"), CHOICES)
    assert record["status"] == "oom"
    assert record["message"] == "cost: out of memory"
    assert record["row"]["accuracy"] == 0.5


def test_training_takes_one_thread_and_measuring_all(monkeypatch):
    asked = outcomes(monkeypatch, accuracy=OK, cost=OK)
    monkeypatch.setattr(cell.os, "sched_getaffinity", lambda _: set(range(7)))
    cell.measure(changed("measure", "both"), CHOICES)
    assert [threads for _, threads, _ in asked] == [1, 7]
    asked.clear()
    cell.measure(changed("threads", 3, changed("measure", "both")), CHOICES)
    assert [threads for _, threads, _ in asked] == [3, 3]


def test_limits_reach_the_process_but_no_address_limit_on_cuda(monkeypatch):
    asked = outcomes(monkeypatch, accuracy=OK)
    cell.measure(CONFIG, CHOICES)
    cell.measure(changed("device", "cuda"), CHOICES)
    assert [limits for _, _, limits in asked] == [
        {"memory_gib": 8, "seconds": 3600},
        {"memory_gib": None, "seconds": 3600},
    ]


def test_a_cell_that_another_process_runs_is_left_to_it(monkeypatch, tmp_path):
    asked = outcomes(monkeypatch, accuracy=OK)
    with records.claim(tmp_path, key()) as mine:
        assert mine
        assert cell.run(CONFIG, CHOICES, tmp_path) == "busy"
    assert asked == []
    assert cell.run(CONFIG, CHOICES, tmp_path) == "ok"
    assert cell.run(CONFIG, CHOICES, tmp_path) == "done"
    assert len(asked) == 1
