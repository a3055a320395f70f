"""For commands that act on a running site: a missing one is one clear line."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError

from billing.errors import Refusal


@contextmanager
def running_site() -> Iterator[None]:
    """What happens in the block needs the site's database; refusals and its absence become CommandErrors."""
    if not settings.DATABASE_URL:
        raise CommandError(f"No site runs in {settings.DATA_DIR}. Start one with `make run`, or set DATABASE_URL.")
    try:
        # Asked directly first: the pool would retry for seconds and log each try.
        psycopg.connect(settings.DATABASE_URL, connect_timeout=3).close()
        yield
    except (psycopg.OperationalError, OperationalError) as error:
        raise CommandError(f"The site's database does not answer: {str(error).splitlines()[0]}") from None
    except ProgrammingError:
        raise CommandError("The site is not prepared yet: try again when it has said its address.") from None
    except Refusal as refusal:
        raise CommandError(refusal.message) from None
