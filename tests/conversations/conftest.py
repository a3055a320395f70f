"""A conversation on the echo model, and generations that end as the worker ends them."""

from collections.abc import Callable
from typing import Any

import pytest

from billing.models import User
from conversations import operations
from conversations.models import Conversation
from inference.endings import Ending, end
from inference.models import Generation, ServedModel

Finish = Callable[..., None]


@pytest.fixture
def conversation(user: User, echo_model: ServedModel) -> Conversation:
    return operations.start(user=user, system_prompt="Be brief.")


@pytest.fixture
def finish(django_capture_on_commit_callbacks: Any) -> Finish:
    """Run and end a generation with a text; its reservation is given back."""

    def run(generation: Generation, text: str = "Yes.", *, status: str = "FINISHED", reason: str = "stop") -> None:
        generation.refresh_from_db()
        ending = Ending(status, reason, text=text, completion_tokens=len(text.encode()))
        with django_capture_on_commit_callbacks(execute=True):
            assert end(generation, generation.status, ending)

    return run
