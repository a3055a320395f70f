"""What must hold on a live system, looked at from outside: `manage.py doctor` and the faults tests."""
