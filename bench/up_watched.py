"""`manage.py up` with GPU workers that can be watched (bench.watched): python -m bench.up_watched.

They run under the site's supervisor as ever, and so in its session: Linux shares processors between sessions first,
and only within one by nice values. A worker in another session made the web process wait 2 to 12 ms at each wake-up.
"""

import os
from dataclasses import replace

from django.core.management import execute_from_command_line

from chatsite import local_run
from chatsite.supervision import WORKER, Program

usual = local_run.programs


def watched(program: Program) -> Program:
    """The same program; a GPU worker's Celery application is bench.watched."""
    if program.priority != WORKER or not program.name.startswith("gpu"):
        return program
    argv = list(program.argv)
    argv[argv.index("-A") + 1] = "bench.watched"
    return replace(program, argv=argv)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")
    local_run.programs = lambda: [watched(program) for program in usual()]
    execute_from_command_line(["manage.py", "up"])
