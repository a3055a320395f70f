"""Virtual token counters: what is charged to whom, as service happens (see inference.scheduling).

The prompt when a generation is first started, output with each renewal, the rest when it ends; a later attempt
charges only what is new. Locks are taken in one order: generations, then counters by user, then the clock.
"""

from django.db import connection

from inference.models import Generation
from inference.scheduling import OUTPUT_WEIGHT, PROMPT_WEIGHT

# CTEs for a statement whose `taken` are generations that were claimed, at most one of a user and band.
# %(bands)s, %(clocks)s: for each band of theirs the least counter that waits.
CHARGE_START = f"""
charged AS (
    INSERT INTO inference_served (user_id, model_id, band, tokens)
    SELECT user_id, model_id, band, floor + prompt_tokens * (attempt = 1)::int * {PROMPT_WEIGHT} / weight
    FROM taken ORDER BY user_id, band
    ON CONFLICT (user_id, model_id, band) DO UPDATE SET tokens = (
        SELECT greatest(inference_served.tokens, floor) + EXCLUDED.tokens - floor FROM taken
        WHERE taken.user_id = EXCLUDED.user_id AND taken.band = EXCLUDED.band
    )
), ticked AS (
    INSERT INTO inference_queueclock (model_id, band, tokens)
    SELECT (SELECT model_id FROM taken LIMIT 1), band, clock
    FROM unnest(%(bands)s::smallint[], %(clocks)s::float8[]) AS ticks(band, clock)
    WHERE EXISTS (SELECT 1 FROM taken) ORDER BY band
    ON CONFLICT (model_id, band) DO UPDATE SET tokens = EXCLUDED.tokens
    WHERE inference_queueclock.tokens < EXCLUDED.tokens
)
"""  # noqa: S608 - our own constants

# The same for `renewed`, many generations with the tokens that each has produced since the last time.
CHARGE_OUTPUT = f"""
charged AS (
    INSERT INTO inference_served (user_id, model_id, band, tokens)
    SELECT user_id, model_id, band, sum(greatest(produced, 0) * {OUTPUT_WEIGHT} / weight) FROM renewed
    GROUP BY user_id, model_id, band HAVING sum(greatest(produced, 0)) > 0 ORDER BY user_id, band
    ON CONFLICT (user_id, model_id, band) DO UPDATE SET tokens = inference_served.tokens + EXCLUDED.tokens
)
"""  # noqa: S608

CHARGE_REST = """
INSERT INTO inference_served (user_id, model_id, band, tokens) VALUES (%s, %s, %s, %s)
ON CONFLICT (user_id, model_id, band) DO UPDATE SET tokens = inference_served.tokens + EXCLUDED.tokens
"""


def charge_rest(generation: Generation, charged_tokens: int) -> None:
    """Charge the output of an ended generation beyond the `charged_tokens` that its renewals told."""
    tokens = max(0, generation.completion_tokens - charged_tokens) * OUTPUT_WEIGHT / generation.weight
    if tokens:
        with connection.cursor() as cursor:
            cursor.execute(CHARGE_REST, [generation.user_id, generation.model_id, generation.band, tokens])
