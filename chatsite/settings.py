"""All settings of every process; nothing else reads the environment.

A local run (`make run`) leaves DATABASE_URL and REDIS_URL unset: the addresses of the embedded stores
then come from DATA_DIR/run.json, which `manage.py up` writes, so that every manage.py command finds
the running site.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.maint_notifications import MaintNotificationsConfig

from chatsite import env

BASE_DIR = Path(__file__).resolve().parent.parent

# -- where a local run keeps its things ---------------------------------------------------------

DATA_DIR = Path(env.text("DATA_DIR", "data", "Folder with all state of a local run")).resolve()
MODEL_DIR = Path(
    env.text("MODEL_DIR", "", "Folder with the models' files; empty: DATA_DIR/models") or DATA_DIR / "models"
).resolve()
RUN_FILE = DATA_DIR / "run.json"
HOST = env.text("HOST", "127.0.0.1", "Address that the web processes, and the probes, listen on")
PORT = env.integer("PORT", 8000, "Port of the site", minimum=1)
WEB_PROCESSES = env.integer("WEB_PROCESSES", 1, "Web processes that `make run` starts", minimum=1)
ADMIN_EMAIL = env.text("ADMIN_EMAIL", "", "E-mail of the first administrator; empty: asked for, or admin@localhost")
ADMIN_PASSWORD = env.text("ADMIN_PASSWORD", "", "Password of the first administrator; empty: asked for, or made up")
GPU_WORKERS = env.integer("GPU_WORKERS", 1, "GPU workers that `make run` starts")


def _run_file() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(RUN_FILE.read_text())
    except FileNotFoundError:
        return {}
    return found


_RUN = _run_file()

DATABASE_URL = env.text("DATABASE_URL", "", "postgresql://…; empty: an embedded PostgreSQL") or _RUN.get(
    "database_url", ""
)
REDIS_URLS = env.words("REDIS_URL", "", "redis://…, several separated by commas (shards); empty: an embedded Valkey")
REDIS_URLS = REDIS_URLS or _RUN.get("redis_urls", [])

# -- Django -------------------------------------------------------------------------------------

DEBUG = env.flag("DEBUG", False, "Django's debug pages; never in production")


def _secret_key() -> str:
    given = env.text("SECRET_KEY", "", "Signs sessions and salts the KV cache; empty: made once, kept in DATA_DIR")
    path = DATA_DIR / "secret_key"
    if given or not path.exists():
        return given
    return path.read_text().strip()


# Empty only for commands that need none (collectstatic at build); chatsite.checks refuses to serve then.
SECRET_KEY = _secret_key() or "unset-" + "0" * 50
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]", "Host names that the site answers to")
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS", "", "Origins beyond the own host, with scheme")
HTTPS = env.flag("HTTPS", False, "The site is reached through HTTPS: secure cookies, HSTS, redirect")

INSTALLED_APPS = [
    # Before staticfiles: `runserver` then speaks ASGI. Elsewhere it would only cost 28 MB in each process.
    *(["daphne"] if "runserver" in sys.argv else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "allauth",
    "allauth.account",
    "csp",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "chatsite",
    "billing",
    "inference",
    "conversations",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "chatsite.middleware.permissions_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "chatsite.middleware.around_views",
]
ROOT_URLCONF = "chatsite.urls"
ASGI_APPLICATION = "chatsite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_USER_MODEL = "billing.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]  # static/dist is made by frontend/build.sh
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
# Names with a hash, Django's or esbuild's, never change their content.
WHITENOISE_IMMUTABLE_FILE_TEST = r"^/static/.+[.-](?:[0-9a-f]{12}|[0-9A-Z]{8})\.\w+$"
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES = env.integer(
    "MAX_BODY_BYTES", 2_000_000, "Largest request body in bytes", minimum=1000
)

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]  # asked for inside, where there is no proxy with TLS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None

# Nothing inline, nothing from elsewhere; 'self' covers our WebSockets. Relaxed per view where needed (chatsite.urls).
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"

# -- accounts (django-allauth) ------------------------------------------------------------------

AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
SIGNUP_OPEN = env.flag("SIGNUP_OPEN", True, "Anyone may make an account; 0: only the operator, in the admin")
VERIFY_EMAIL = env.flag("VERIFY_EMAIL", False, "New accounts open once their e-mail address is confirmed")
ACCOUNT_ADAPTER = "billing.signup.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_EMAIL_VERIFICATION = "mandatory" if VERIFY_EMAIL else "none"
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = False  # here; other sessions end, for their hash is the old password's
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if HTTPS else "http"
ALLAUTH_TRUSTED_PROXY_COUNT = env.integer(
    "TRUSTED_PROXIES", 0, "Reverse proxies in front of the site, whose X-Forwarded-For names the client"
)

EMAIL_HOST = env.text("EMAIL_HOST", "", "SMTP server; empty: e-mail is written to the web processes' log")
EMAIL_PORT = env.integer("EMAIL_PORT", 587, "Port of the SMTP server; 465 speaks TLS from the start, others STARTTLS")
EMAIL_HOST_USER = env.text("EMAIL_USER", "", "Login at the SMTP server; empty: none, and no TLS")
EMAIL_HOST_PASSWORD = env.text("EMAIL_PASSWORD", "", "Password at the SMTP server")
DEFAULT_FROM_EMAIL = env.text("EMAIL_FROM", "chatsite@localhost", "Sender of the site's e-mail")
EMAIL_USE_SSL = bool(EMAIL_HOST_USER) and EMAIL_PORT == 465
EMAIL_USE_TLS = bool(EMAIL_HOST_USER) and EMAIL_PORT != 465
EMAIL_TIMEOUT = 10
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend"

# -- stores -------------------------------------------------------------------------------------

DATABASE_POOL = env.integer("DATABASE_POOL", 8, "Database connections of one process, at most", minimum=2)
PREPARED_STATEMENTS = env.flag(
    "PREPARED_STATEMENTS", True, "Keep plans; 0 behind a pooler that shares connections between transactions"
)
POOL_WAIT_S = 5.0


def _database(url: str) -> dict[str, Any]:
    """Django's DATABASES entry for a postgresql:// URL; `?host=/folder` names a socket folder."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", None) or parts.hostname or "",
        "PORT": str(parts.port or ""),
        # A pool and no CONN_MAX_AGE: under ASGI each request has its own thread (notes in docs/architecture.md).
        "CONN_MAX_AGE": 0,
        # Else, after a restart of PostgreSQL, each connection in the pool would fail somebody's request.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            "pool": {"min_size": 1, "max_size": DATABASE_POOL, "timeout": POOL_WAIT_S},
            # Planning was two thirds of PostgreSQL's share of a request. Raw SQL must therefore name its types.
            "server_side_binding": PREPARED_STATEMENTS,
            "prepare_threshold": 3 if PREPARED_STATEMENTS else None,
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            **query,
        },
    }


DATABASES = {"default": _database(DATABASE_URL or "postgresql://unset.invalid/unset")}

REDIS_TIMEOUT_S = 2.0  # a store that hangs ends in a refusal, never in a hanging request
REDIS_CONNECTIONS = env.integer("REDIS_CONNECTIONS", 64, "Connections of one process to each Redis, at most", minimum=8)
CACHES = {  # allauth's rate limits, which hold over all web processes
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URLS[0] if REDIS_URLS else "redis://unset.invalid",
        "KEY_PREFIX": "cache",
        "OPTIONS": {
            "max_connections": REDIS_CONNECTIONS,
            "socket_timeout": REDIS_TIMEOUT_S,
            "socket_connect_timeout": REDIS_TIMEOUT_S,
        },
    },
}
# redis-py takes a connection that the server has closed for a good one while it may be told of maintenance: after a
# restart of Valkey, each idle connection would have failed somebody's request.
REDIS_QUIET = MaintNotificationsConfig(enabled=False)
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {
            "hosts": [
                {
                    "address": url,
                    "max_connections": REDIS_CONNECTIONS,
                    "socket_connect_timeout": REDIS_TIMEOUT_S,
                    "maint_notifications_config": REDIS_QUIET,
                }
                for url in REDIS_URLS
            ],
        },
    },
}

# Read by chatsite.celery through the CELERY_ prefix.
CELERY_BROKER_URL = env.text("BROKER_URL", "", "Celery's broker; empty: the first REDIS_URL") or (
    REDIS_URLS[0] if REDIS_URLS else "redis://unset.invalid"
)
CELERY_TASK_IGNORE_RESULT = True
# Taken only by a worker with a free thread, and gone from the broker then (see ack_emulation below).
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DIRECT = True  # each worker has a queue of its own too: inference.tickets.call_worker
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a worker waits for its broker as long as it takes (chatsite/consumer.py)
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
# Nobody commands workers through Celery. Without it a worker has no subscription at the broker, whose loss ends a
# Celery 5.7 worker that has something to acknowledge just then (tests/faults/test_readers.py).
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
HINT_TIMEOUT_S = 0.2  # a hint that cannot be sent in this time is dropped (docs/architecture.md)
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # No books of unacknowledged messages, whose two round trips and clients were a third of a ticket's cost. A ticket
    # is a hint, the side worker's jobs come again, and redelivery is not crash recovery: leases are.
    "ack_emulation": False,
    "socket_timeout": HINT_TIMEOUT_S,
    "socket_connect_timeout": HINT_TIMEOUT_S,
    "max_retries": 0,
}

# -- the engine and its model ---------------------------------------------------------------------

ENGINE = env.choice("ENGINE", "vllm", ("vllm", "echo"), "The engine of a GPU worker; echo is a scripted one for tests")
MODEL = env.text("MODEL", "", "Name of the model that a worker serves; empty: smollm2-135m-instruct, or echo") or (
    "echo" if ENGINE == "echo" else "smollm2-135m-instruct"
)
MODEL_SOURCE = env.text(
    "MODEL_SOURCE", "", "Folder or hub name that MODEL's files come from; empty: the model from PyPI"
)
ENGINE_SLOTS = env.integer("ENGINE_SLOTS", 0, "Generations that an engine runs at once; 0: 32 on a CPU, 256 on a GPU")
CONTEXT_LENGTH = env.integer("CONTEXT_LENGTH", 0, "Context in tokens; 0: what the model says, at most 8192")
KV_CACHE_BYTES = env.integer(
    "KV_CACHE_BYTES", 0, "KV cache of an engine in bytes; 0: 1 GiB on a CPU, vLLM's choice on a GPU"
)
ENGINE_OPTIONS = env.text("ENGINE_OPTIONS", "{}", "More arguments for vLLM's engine, as JSON")

# -- the life of a generation -----------------------------------------------------------------------

LEAST_ANSWER = env.integer(
    "LEAST_ANSWER", 16, "Output tokens; a limit that leaves fewer refuses the request", minimum=1
)
QUEUE_DEPTH = env.integer("QUEUE_DEPTH", 1000, "Requests that may wait for one model; more get 429", minimum=1)
MAX_WAIT_S = env.seconds("MAX_WAIT", 300, "Seconds that a request may wait for its turn; then it ends, or gets 429")
LEASE_S = env.seconds("LEASE", 3, "Seconds after which a silent worker's generations go elsewhere")
MAX_DEATHS = 3  # deaths of its own worker after which a generation fails
DRAIN_S = env.seconds("DRAIN", 20, "Seconds that a worker told to stop lets its generations run")
REPLAY_S = env.seconds("REPLAY_WINDOW", 60, "Seconds that an ended generation's token log and text are kept")
ABANDON_S = env.seconds(
    "ABANDON_AFTER", 120, "Seconds after which a chat's answer that nobody follows is cancelled; 0: never"
)
ABANDON_BUSY_S = env.seconds("ABANDON_AFTER_BUSY", 15, "The same for one that is being written while others wait")
RETRY_S = 10.0  # on /v1 nobody can come back, but for a retry with the same Idempotency-Key
FRAME_S = 0.04  # 25 frames a second and generation
WAIT_WITHOUT_WORKER_S = env.seconds("WAIT_WITHOUT_WORKER", 60, "Seconds that a request waits while no worker lives")
NO_WORKER_503_S = env.seconds("REFUSE_WITHOUT_WORKER", 30, "Seconds without a live worker after which /v1 answers 503")
HEARTBEAT_S = env.seconds("HEARTBEAT", 15, "Seconds between comments on a silent stream")
READER_TIMEOUT_S = env.seconds(
    "READER_TIMEOUT", 60, "Seconds after which a client that takes nothing is dropped (Linux)"
)
WEB_DRAIN_S = env.seconds("WEB_DRAIN", 30, "Seconds that a web process told to stop lets /v1 streams run")
STREAM_BUFFER_BYTES = env.integer("STREAM_BUFFER", 65_536, "Unsent bytes of one reader before its frames merge")
DEFAULT_SYSTEM_PROMPT = env.text("SYSTEM_PROMPT", "You are a helpful assistant.", "System prompt of new conversations")

# -- money ----------------------------------------------------------------------------------------------

CURRENCY = env.text("CURRENCY", "USD", "Currency of the prices, as it stands behind an amount")
UPGRADE_URL = env.text(
    "UPGRADE_URL", "", "Page (or mailto:) where people get a larger plan; empty: none, and it is not offered"
)

# -- the API ------------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "billing.rest.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["billing.bodies.JSONBody"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "billing.rest.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "chatsite",
    "DESCRIPTION": "Conversations, messages, streams, keys and usage.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.1",  # pydantic writes `type: null`
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "conversations.schemas.add_stream",
    ],
}

# -- what the person on call sees (docs/operations.md) ----------------------------------------------------

METRICS_TOKEN = env.text("METRICS_TOKEN", "", "Bearer token that opens /metrics; empty: only staff who are logged in")
METRICS_DIR = env.text(
    "PROMETHEUS_MULTIPROC_DIR", "", "Folder where the processes of one host gather metrics; `make run` sets it"
)
PROBE_PORT = env.integer("PROBE_PORT", 0, "Port of a worker's own /healthz, /readyz and /metrics; 0: none")
LOG_LEVEL = env.text("LOG_LEVEL", "INFO", "Level of the processes' logs")
LOG_FORMAT = env.choice("LOG_FORMAT", "text", ("text", "json"), "Lines for people, or one JSON object a line")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "context": {"()": "inference.logs.Context"},
        "repeats": {"()": "inference.logs.Repeats"},
        # uvicorn says so of each refused handshake, though the refusal was its answer.
        "handshakes": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: record.msg != "ASGI callable returned without completing handshake.",
        },
    },
    "formatters": {
        "text": {
            "()": "inference.logs.Line",
            "format": "{asctime} {levelname} {name} {message}",
            "style": "{",
        },
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "format": "{asctime}{levelname}{name}{process}{message}{request}{generation}",
            "style": "{",
            "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger", "process": "pid"},
        },
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT, "filters": ["context", "repeats"]}
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "py.warnings": {"level": "ERROR"},  # Celery's notes for its users, at each reconnect
        # Each ticket (a second), each job that beat sends, each socket's handshake: their failures are enough.
        **{name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace", "celery.beat")},
        "uvicorn.error": {"level": "WARNING", "filters": ["handshakes"]},
    },
}
