"""The heads of all users' queues, as a function whose plan is kept and pinned (inference.waiting says why)."""

from django.db import migrations

# The oldest waiting generation of each user and band: a "loose index scan", one descent of the index
# generation_queue per head, whatever waits behind it (PostgreSQL has no skip scan for DISTINCT ON).
HEAD = """
SELECT g.id, g.user_id, g.band, g.prompt_tokens + g.grant AS tokens, g.is_suspect, g.created_at, g.boost_s,
       g.affinity, greatest(g.floor, coalesce((
           SELECT s.tokens FROM inference_served s
           WHERE s.user_id = g.user_id AND s.model_id = g.model_id AND s.band = g.band
       ), 0)) AS counter
FROM inference_generation g
WHERE g.model_id = wanted_model AND g.status = 'WAITING' AND NOT g.cancel_requested
"""
FIRST = "ORDER BY g.band, g.user_id, g.created_at LIMIT 1"
CREATE = f"""
CREATE FUNCTION inference_heads(wanted_model text, heads int, aged int)
RETURNS TABLE (head_id uuid, head_user uuid, head_band smallint, head_tokens int, head_suspect boolean,
               head_waited float8, head_boost float8, head_affinity uuid, head_counter float8)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
RETURN QUERY
WITH RECURSIVE head AS (
    ({HEAD} {FIRST})
    UNION ALL
    SELECT next.* FROM head, LATERAL ({HEAD} AND (g.band, g.user_id) > (head.band, head.user_id) {FIRST}) AS next
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY band ORDER BY counter, created_at) AS by_counter,
           row_number() OVER (ORDER BY created_at) AS by_age
    FROM head
)
SELECT id, user_id, band, tokens, is_suspect, extract(epoch FROM clock_timestamp() - created_at)::float8,
       boost_s::float8, affinity, counter::float8
FROM ranked
-- Nobody claims what a deleted account was about to ask. A scalar subquery: always one probe per row.
WHERE (by_counter <= heads OR by_age <= aged) AND (SELECT true FROM billing_user u WHERE u.id = ranked.user_id);
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("inference", "0005_stand_in_and_trouble"), ("billing", "0003_theme_time_zone_lower_email")]

    operations = [migrations.RunSQL(CREATE, "DROP FUNCTION inference_heads(text, int, int)")]
