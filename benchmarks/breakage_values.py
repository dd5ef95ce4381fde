"""Breakage by values: a text with a varying value in it, put into the system prompt or a tool."""

import uuid

from breakage_planting import (
    CODER,
    DESK,
    MEMORIES,
    NAMES,
    STATES,
    TREES,
    Plant,
    daily,
    hexes,
    in_system,
    in_tool,
    per_session,
    stamp,
    turn_of,
    unique,
)

SHAPES: list[tuple[str, Plant]] = [
    ("KV101 iso line", in_system("KV101", "Current time: {}\n", stamp("%Y-%m-%d %H:%M:%S"))),
    (
        "KV101 sentence",
        in_system("KV101", "It is now {}. ", stamp("%A, %B %d, %Y at %I:%M:%S %p"), "middle", DESK),
    ),
    ("KV101 zulu tag", in_system("KV101", "<now>{}</now>\n", stamp("%Y-%m-%dT%H:%M:%SZ"), agent=CODER)),
    ("KV101 epoch", in_system("KV101", "[ts={}]\n", lambda n, row, r: str(int(row["timestamp"])), "middle")),
    ("KV101 in a tool", in_tool("KV101", " The time at the airport is {}.", stamp("%H:%M:%S"))),
    ("KV102 today", in_system("KV102", "Today's date is {}.\n", daily("%Y-%m-%d"))),
    ("KV102 long", in_system("KV102", "Today is {}.\n", daily("%A, %d %B %Y"), "middle", DESK)),
    ("KV102 us", in_system("KV102", "Date: {}\n", daily("%m/%d/%Y"), agent=CODER)),
    ("KV103 uuid", in_system("KV103", "Request ID: {}\n", unique)),
    (
        "KV103 billing",
        in_system("KV103", "x-billing-header: cc_version=2.1.39; cch={};\n", hexes(5), agent=CODER),
    ),
    ("KV103 comment", in_system("KV103", "<!-- {} -->\n", hexes(16), "middle", DESK)),
    ("KV103 in a tool", in_tool("KV103", " (call ref {})", hexes(12))),
    (
        "KV104 id",
        in_system("KV104", "Session: {}\n", per_session(lambda r, s: f"sess_{r.getrandbits(48):012x}")),
    ),
    (
        "KV104 scratch",
        in_system(
            "KV104",
            "Write temporary files to {} only.\n",
            per_session(lambda r, s: f"/tmp/agent-{r.getrandbits(32):08x}"),
            agent=CODER,
        ),
    ),
    (
        "KV104 uuid",
        in_system(
            "KV104",
            "conversation_id={}\n",
            per_session(lambda r, s: str(uuid.UUID(int=r.getrandbits(128)))),
            "middle",
            DESK,
        ),
    ),
    (
        "KV105 cwd",
        in_system(
            "KV105",
            "Working directory: {}\n",
            per_session(lambda r, s: f"/home/{NAMES[s % 7].split()[0].lower()}/work/project{s}"),
            agent=CODER,
        ),
    ),
    (
        "KV105 git",
        in_system("KV105", "Git status:\n{}\n\n", per_session(lambda r, s: STATES[s % 3]), agent=CODER),
    ),
    (
        "KV105 tree",
        in_system("KV105", "# Files\n{}\n\n", per_session(lambda r, s: TREES[s % 3]), "middle", CODER),
    ),
    (
        "KV105 branch",
        in_system(
            "KV105",
            "Current branch: {}\n",
            per_session(lambda r, s: f"feature/{NAMES[s % 7].split()[1].lower()}-fix"),
            agent=CODER,
        ),
    ),
    (
        "KV106 percent",
        in_system("KV106", "Context used: {}%\n", lambda n, row, r: str(3 + 4 * turn_of(row)), agent=CODER),
    ),
    (
        "KV106 left",
        in_system(
            "KV106", "You have {} tokens left.\n", lambda n, row, r: f"{200000 - 1371 * turn_of(row):,}"
        ),
    ),
    (
        "KV106 message",
        in_system(
            "KV106",
            "This is message number {} of the chat.\n",
            lambda n, row, r: str(turn_of(row)),
            "middle",
            DESK,
        ),
    ),
    ("KV107 name", in_system("KV107", "You are speaking with {}.\n", per_session(lambda r, s: NAMES[s % 7]))),
    (
        "KV107 mail",
        in_system(
            "KV107",
            "Account: {}\n",
            per_session(lambda r, s: NAMES[s % 7].lower().replace(" ", ".") + "@example.com"),
            agent=DESK,
        ),
    ),
    (
        "KV107 locale",
        in_system(
            "KV107",
            "User locale: {}\n",
            per_session(lambda r, s: ("en-US", "de-DE", "pt-PT", "fr-FR")[s % 4]),
            "middle",
            DESK,
        ),
    ),
    (
        "KV107 plan",
        in_system(
            "KV107",
            "Subscription plan: {}\n",
            per_session(lambda r, s: ("free", "pro", "enterprise")[s % 3]),
            agent=CODER,
        ),
    ),
    (
        "KV301 memory",
        in_system(
            "KV301",
            "# Memory\n{}\n\n",
            lambda n, row, r: MEMORIES[(turn_of(row) + int(row["session_id"][1:])) % 5],
        ),
    ),
    (
        "KV301 documents",
        in_system(
            "KV301",
            "Retrieved passages:\n{}\n\n",
            lambda n, row, r: "\n".join(r.sample(MEMORIES, 2)),
            "middle",
            DESK,
        ),
    ),
    (
        "KV302 task",
        in_system(
            "KV302",
            "Your goal today: {}\n\n",
            per_session(
                lambda r, s: (
                    "sell more upgrades to families",
                    "calm down guests whose flights are late",
                    "collect honest reviews of the lounge",
                )[s % 3]
            ),
        ),
    ),
    (
        "KV302 persona",
        in_system(
            "KV302",
            "{}\n\n",
            per_session(
                lambda r, s: (
                    "Speak like an old sea captain who loves the stars.",
                    "Sound like a patient teacher of small children.",
                    "Be as brief as a telegram from the last century.",
                )[s % 3]
            ),
            agent=DESK,
        ),
    ),
    (
        "KV100 mood",
        in_system(
            "KV100", "Mood: {}\n", per_session(lambda r, s: ("calm", "merry", "stern")[s % 3]), agent=DESK
        ),
    ),
]
