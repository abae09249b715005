from __future__ import annotations

import argparse
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import xlt_serve
from tests.conftest import FOOD, SPORTS
from xlt_serve.cli.main import main
from xlt_serve.errors import XltError


class Stdin(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_predict_from_a_file(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{SPORTS}\n\n{FOOD}\r\n", encoding="utf-8")
    code, out, _ = run(capsys, "predict", "--bundle", bundle, file)
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["label"] for line in lines] == ["sports", None, "food"]
    assert lines[1]["error"]["code"] == "empty"
    assert sum(lines[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("file", [[], ["-"]])
def test_predict_from_standard_input(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pair_bundle: Path,
    file: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"rain\tsnow\nno tab here\n"))
    code, out, _ = run(capsys, "predict", "--bundle", pair_bundle, *file)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert lines[0]["label"] is not None
    assert lines[1]["error"]["code"] == "shape"


def test_inspect(capsys: pytest.CaptureFixture[str], bundle: Path) -> None:
    code, out, _ = run(capsys, "inspect", bundle)
    assert code == 0
    assert "food, sports, weather" in out
    code, out, _ = run(capsys, "inspect", bundle, "--json")
    assert json.loads(out)["labels"] == ["food", "sports", "weather"]


def test_eval_of_checkpoint_and_bundle_agree(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, bundle: Path, toy_data: Path
) -> None:
    options = ("--task", "sib200", "--data", toy_data, "--languages", "en,de")
    code, table, _ = run(capsys, "eval", checkpoint, *options)
    assert code == 0
    assert re.search(r"^target +\d\.\d{3} \[", table, re.MULTILINE)
    found = []
    for place in (checkpoint, bundle):
        _, out, _ = run(capsys, "eval", place, *options, "--json")
        (model,) = json.loads(out)["models"]
        assert set(model["languages"]) == {"en", "de"}
        found.append(
            {lg: (row["accuracy"], row["confusion"]) for lg, row in model["languages"].items()}
        )
    assert found[0] == found[1]


def test_eval_of_another_task_is_refused(
    capsys: pytest.CaptureFixture[str], bundle: Path, toy_data: Path
) -> None:
    code, _, err = run(capsys, "eval", bundle, "--task", "xnli", "--data", toy_data)
    assert code == 2
    assert "classifies single texts, the rows are pairs" in err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_serve_says_when_its_port_is_taken(
    capsys: pytest.CaptureFixture[str], bundle: Path, host: str
) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run(capsys, "serve", "--bundle", bundle, "--host", host, "--port", port)
    assert code == 2
    assert "can't be listened on (Address already in use)" in err


def test_train_and_export(
    capsys: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path
) -> None:
    code, out, err = run(
        capsys, "train", config_file, "seed=3", "--out", tmp_path / "run", "train.epochs=1"
    )
    assert code == 0, err
    assert "dev score (source-dev)" in out
    assert "cross_entropy" in err
    code, out, err = run(
        capsys, "export", tmp_path / "run", "--out", tmp_path / "b", "--name", "mine"
    )
    assert code == 0, err
    assert "mine" in out


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods")
    assert code == 0
    assert out.startswith("vanilla")
    assert "needs words of the source language" in out
    assert "isozcl            In stages: isotropy, then code_switch.\n" in out
    assert out.endswith("rs_rp             A variant of noise.\n")


def test_train_by_names(
    capsys: pytest.CaptureFixture[str],
    encoders: dict[str, Path],
    toy_data: Path,
    tmp_path: Path,
) -> None:
    """Overrides may stand anywhere; two methods that want a setting otherwise are told which."""
    names = ["train", "--task", "sib200", f"task.data={toy_data}", "--method", "synonyms,ear"]
    given = [f"encoder={encoders['xlm-roberta']}", "train.max_steps=1", "--out", tmp_path / "run"]
    code, _, err = run(capsys, *names, *given, "train.head_first=0")
    assert code == 0, err
    found = json.loads((tmp_path / "run" / "xlt.json").read_text())["config"]["stages"][-1]
    assert [method["name"] for method in found["methods"]] == ["synonyms", "ear"]
    assert (found["train"]["epochs"], found["train"]["freeze"]) == (2.0, -1)
    code, _, err = run(
        capsys, "train", "--task", "sib200", "--method", "synonyms,translate_train", "--out", "o"
    )
    assert code == 2
    assert "train.epochs is set to 2 by synonyms and 1 by translate_train" in err
    assert "train.epochs=VALUE" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "see xlt --help"),
        (["fly"], 2, "invalid choice"),
        (["train", "x.toml"], 2, "--out"),
        (["train", "none.toml", "--out", "o"], 1, "none.toml: is not there"),
        (["train", "--out", "o"], 2, "needs a config or a task"),
        (["train", "--method", "ear", "--out", "o"], 2, "needs a task; give --task NAME"),
        (["train", "--task", "sib", "--out", "o"], 2, "did you mean 'sib200'?"),
        (["train", "x.toml", "--task", "sib200", "--out", "o"], 2, "'x.toml' is not key=value"),
        (["predict", "--bundle", "none"], 1, "is neither a shipped bundle"),
        (["inspect", "none"], 1, "is neither a shipped bundle"),
        (["export", "none", "--out", "o"], 1, "is not a finished checkpoint"),
        (["eval", "none", "--task", "sib200", "--data", "d"], 1, "is neither a shipped bundle"),
        (["serve", "--bundle", "none"], 1, "is neither a shipped bundle"),
        (["serve", "--port", "99999"], 2, "must be between 1 and 65535"),
        (["predict", "--fast"], 2, "unrecognized arguments: --fast"),
    ],
)
def test_wrong_calls_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    got, _, err = run(capsys, *arguments)
    assert got == code
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], bundle: Path, toy_data: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "latin1.txt"
    bad.write_bytes("gut\nschön\n".encode("latin-1"))
    for arguments, says in (
        (["predict", "--bundle", bundle, bad], "line 2: 1 of its lines is not valid UTF-8"),
        (["predict", "--bundle", bundle, tmp_path], "is a folder"),
        (["predict", "--bundle", bundle, tmp_path / "none"], "is not there"),
        (["predict", "--bundle", bundle, "--abstain-below", "3", bad], "between 0 and 1"),
        (["eval", bundle, "--task", "xsid", "--data", toy_data], "has no dev files of xsid"),
        (["eval", bundle, "--task", "no", "--data", toy_data], "is not a task"),
        (
            ["eval", bundle, "--task", "sib200", "--data", toy_data, "--languages", "xx"],
            "dev-xx.tsv: is not there",
        ),
    ):
        code, _, err = run(capsys, *arguments)
        assert code in (1, 2)
        assert says in err
        assert len(err.strip().splitlines()) == 1


def test_a_line_that_is_no_text_does_not_sink_its_neighbours(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mixed.txt"
    file.write_bytes(f"{SPORTS}\nschön\n{FOOD}\n".encode("latin-1"))
    code, out, err = run(capsys, "predict", "--bundle", bundle, file)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["label"] for line in lines] == ["sports", None, "food"]
    assert lines[1]["error"]["code"] == "not_text"
    assert code == 1
    assert "mixed.txt line 2" in err


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"xlt-serve {xlt_serve.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", xlt_serve.__version__)


def test_a_classifier_says_what_it_is(bundle: Path) -> None:
    loaded = xlt_serve.load(bundle)
    version = loaded.bundle.manifest.version
    assert repr(loaded) == f"<Classifier toy {version}: 3 labels, plain>"


@pytest.mark.parametrize(
    "command",
    [
        "init",
        "train",
        "eval",
        "export",
        "engine",
        "predict",
        "inspect",
        "serve",
        "methods",
        "fisher",
    ],
)
def test_help_of_each_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: xlt {command}")


def test_training_commands_name_the_extra_where_torch_is_missing(tmp_path: Path) -> None:
    """A process that can't import torch, as in a serving image."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlt_serve.cli.main import main; sys.exit(main(['methods']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'xlt-serve[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error_message(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "many.txt"
    file.write_text(f"{SPORTS}\n" * 3000)
    command = f"{sys.executable} -m xlt_serve.cli predict --bundle {bundle} {file} | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ)
    )
    assert json.loads(done.stdout)["label"] == "sports"
    assert done.stderr == ""


def test_serve_takes_from_the_environment_what_it_is_not_told(
    monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    """Containers set variables; a default of the command must not undo them."""
    from xlt_serve.cli import serve

    commands = argparse.ArgumentParser().add_subparsers()
    serve.add(commands)
    parser = commands.choices["serve"]
    monkeypatch.setenv("XLT_WORKERS", "3")
    monkeypatch.setenv("XLT_THREADS", "5")
    made = serve.prepared(parser.parse_args(["--bundle", str(bundle)]))
    assert (made["XLT_WORKERS"], made["XLT_THREADS"], made["XLT_PROVIDER"]) == ("3", "5", "cpu")
    asked = ["--bundle", str(bundle), "--workers", "1", "--threads", "2"]
    made = serve.prepared(parser.parse_args(asked))
    assert (made["XLT_WORKERS"], made["XLT_THREADS"]) == ("1", "2")
    assert made["XLT_HOST"] == "127.0.0.1"
    monkeypatch.setenv("XLT_HOST", "::1")
    assert serve.prepared(parser.parse_args(asked))["XLT_HOST"] == "::1"
    told = serve.prepared(parser.parse_args([*asked, "--host", "0.0.0.0"]))
    assert told["XLT_HOST"] == "0.0.0.0"  # what the workers take it for is what is listened on
    monkeypatch.setenv("XLT_PROVIDER", "cuda")
    with pytest.raises(XltError, match="cuda"):  # not quietly on the CPU
        serve.prepared(parser.parse_args(["--bundle", str(bundle)]))
