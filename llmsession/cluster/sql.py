"""The statements of the directory."""

from __future__ import annotations

__all__ = ["LOCK", "LOCK_CLASS", "Statements"]

# With how long its holder may stand still.
LOCK = """
SELECT set_config('idle_in_transaction_session_timeout', $3::text, true),
       pg_advisory_xact_lock($1::int, hashtext($2::text))"""
LOCK_CLASS = 0x6C6C6D63  # "llmc": keeps our advisory locks apart from other programs'


class Statements:
    """The statements on the tables in *schema*. The tables are made when they are first used."""

    def __init__(self, schema: str) -> None:
        s = f'"{schema}"'
        self.make = f"""
            CREATE SCHEMA IF NOT EXISTS {s};
            CREATE TABLE IF NOT EXISTS {s}.host (
                cluster text COLLATE "C" NOT NULL,
                name text COLLATE "C" NOT NULL,
                address text NOT NULL,
                state text NOT NULL,
                incarnation text COLLATE "C" NOT NULL,
                pid bigint NOT NULL,
                started text NOT NULL,
                machine text NOT NULL,
                lease_until timestamptz NOT NULL,
                settled_at timestamptz NOT NULL,
                machine_name text NOT NULL DEFAULT '',
                PRIMARY KEY (cluster, name));
            CREATE TABLE IF NOT EXISTS {s}.host_view (
                cluster text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, wanted integer);
            CREATE TABLE IF NOT EXISTS {s}.host_silence (
                cluster text COLLATE "C" NOT NULL,
                incarnation text COLLATE "C" NOT NULL,
                observer text COLLATE "C" NOT NULL,
                reported_at timestamptz NOT NULL,
                PRIMARY KEY (cluster, incarnation, observer))"""
        # The first host of a cluster has nobody to wait for.
        self.join = f"""
            INSERT INTO {s}.host VALUES ($1, $2, $3,
                CASE WHEN EXISTS (SELECT FROM {s}.host WHERE cluster = $1 AND name <> $2
                                     AND state = 'up' AND lease_until > now())
                     THEN 'joining' ELSE 'up' END,
                $4, $5::bigint, $6, $7,
                now() + make_interval(secs => $8), now() + make_interval(secs => $9), $10)
            ON CONFLICT (cluster, name) DO UPDATE SET address = excluded.address,
                state = excluded.state, incarnation = excluded.incarnation, pid = excluded.pid,
                started = excluded.started, machine = excluded.machine,
                machine_name = excluded.machine_name,
                lease_until = excluded.lease_until, settled_at = excluded.settled_at"""
        self.drain = f"""
            UPDATE {s}.host SET state = 'draining' WHERE cluster = $1 AND name = $2
            RETURNING name"""
        self.remove = f"""
            DELETE FROM {s}.host WHERE cluster = $1 AND incarnation = ANY($2::text[])
            RETURNING name"""
        self.bump = f"""
            INSERT INTO {s}.host_view AS v VALUES ($1, 1)
            ON CONFLICT (cluster) DO UPDATE SET version = v.version + 1 RETURNING version"""
        self.want = f"UPDATE {s}.host_view SET wanted = $2::integer WHERE cluster = $1"
        self.renew = f"""
            UPDATE {s}.host SET lease_until = now() + make_interval(secs => $4)
             WHERE cluster = $1 AND name = $2 AND incarnation = $3 RETURNING name"""
        # What was reported of hosts that are gone is forgotten with the next report.
        in_view = f"""EXISTS (SELECT FROM {s}.host h
                               WHERE h.cluster = o.cluster AND h.incarnation = o.%s)"""
        self.suspect = f"""
            WITH forgotten AS (
                DELETE FROM {s}.host_silence o
                 WHERE o.cluster = $1 AND NOT ({in_view % "incarnation"} AND {in_view % "observer"})
            ), reported AS (
                INSERT INTO {s}.host_silence
                SELECT $1, h.incarnation, $3, now() FROM {s}.host h
                 WHERE h.cluster = $1 AND h.incarnation = $2
                ON CONFLICT (cluster, incarnation, observer)
                DO UPDATE SET reported_at = excluded.reported_at)
            SELECT t.lease_until < now() AS lease_ran_out,
                   t.lease_until < now() + make_interval(secs => $5) AS is_renewal_late,
                   1 + (SELECT count(*) FROM {s}.host_silence o
                         WHERE o.cluster = $1 AND o.incarnation = $2 AND o.observer <> $3
                           AND o.reported_at > now() - make_interval(secs => $4)
                           AND {in_view % "observer"}) AS silent_to
              FROM {s}.host t
             WHERE t.cluster = $1 AND t.incarnation = $2 AND EXISTS (
                SELECT FROM {s}.host WHERE cluster = $1 AND incarnation = $3)"""
        self.withdraw = f"""
            DELETE FROM {s}.host_silence
             WHERE cluster = $1 AND incarnation = $2 AND observer = $3"""
        self.holder = f"SELECT incarnation FROM {s}.host WHERE cluster = $1 AND name = $2"
        # Where no host is up, one that has not settled is better than none.
        may_be_up = f"""state = 'joining' AND (settled_at <= now() OR NOT EXISTS (
            SELECT FROM {s}.host o WHERE o.cluster = $1 AND o.state = 'up'))"""
        self.is_due = f"""
            SELECT EXISTS (SELECT FROM {s}.host
                            WHERE cluster = $1 AND (lease_until < now() OR ({may_be_up})))"""
        self.remove_gone = f"""
            DELETE FROM {s}.host WHERE cluster = $1 AND lease_until < now()
            RETURNING name, incarnation"""
        self.settle = f"""
            UPDATE {s}.host SET state = 'up' WHERE cluster = $1 AND {may_be_up} RETURNING name"""
        self.read = f"""
            SELECT v.version, v.wanted, h.* FROM {s}.host_view v
              LEFT JOIN {s}.host h ON h.cluster = v.cluster
             WHERE v.cluster = $1 ORDER BY h.name"""
