"""Breakage in prompts of other languages and trades: values as they are printed there, and changed forms.

These shapes were first written blind, as a stranger's corpus against the rules as they were, and are kept.
"""

import ast
import copy
import json
import random
import time
import unicodedata
from collections.abc import Callable

from breakage_planting import (
    Base,
    Plant,
    Planted,
    Row,
    Value,
    daily,
    hexes,
    in_system,
    in_tool,
    per_session,
    stamp,
)

WORKS = (
    "Du bist die Kundenberaterin der Stadtwerke und hilfst bei Fragen zu Strom, Gas und Wasser. "
    "Antworte höflich und in ganzen Sätzen. Gib keine Auskunft über Verträge, bevor Kundennummer und "
    "Postleitzahl geprüft sind. Zählerstände nimmst du nur als ganze Zahlen an; weicht einer stark "
    "vom Vorjahr ab, bittest du um ein Foto. Bei Gasgeruch nennst du sofort die Notrufnummer und "
    "stellst keine weiteren Fragen.\n"
    "Preise nennst du brutto. Wenn du etwas nicht weißt, sagst du es und bietest einen Rückruf an. "
    "Höchstens fünf Sätze je Antwort."
)
RAILWAY = (
    "あなたは鉄道会社の案内係です。乗客の質問に丁寧な日本語で答えてください。運賃や乗り換えを尋ねられたときは"
    "、出発駅と到着駅を必ず確認します。切符の払い戻しは利用開始前に限られ、手数料がかかることを伝えます。個人"
    "情報を尋ねてはいけません。荷物の大きさの制限、ペットの持ち込み、自転車の輪行袋についても規則どおりに説明"
    "します。\n"
    "分からないことは推測せず、駅の窓口を案内してください。回答は三文以内にまとめ、英語の質問には英語で答えて"
    "ください。"
)
CLINIC = (
    "Tu es la voix d'un standard téléphonique pour une clinique vétérinaire. Parle en phrases "
    "courtes, sans liste et sans abréviation. Ne pose qu'une question à la fois. Pour une urgence, "
    "transfère l'appel immédiatement. Ne donne jamais de dose de médicament. Les rendez-vous se "
    "prennent par quarts d'heure.\n"
    "Pour une stérilisation, rappelle que l'animal doit être à jeun. Si la ligne est mauvaise, "
    "propose d'envoyer un message."
)
ONCALL = (
    "Role: on-call assistant for the platform team of a payments company. You triage alerts, "
    "correlate them with deploys and draft the incident timeline. You restart nothing yourself: you "
    "hand a runbook step to the human and wait. State the hypothesis, the evidence for it and "
    "against it, and the cheapest next observation. Quote metric names literally.\n"
    "Prefer graphs over logs and logs over guesses. First line: one sentence for the channel. Then "
    "bullets, newest first. Never paste tokens, card numbers or names; say that they were removed."
)
DAYS_DE = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split()  # noqa: SIM905
MONTHS_DE = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()  # noqa: SIM905


def german(row: Row, shift: float = 0) -> str:
    day = time.gmtime(row["timestamp"] + shift)
    return f"{DAYS_DE[day.tm_wday]}, der {day.tm_mday}. {MONTHS_DE[day.tm_mon - 1]} {day.tm_year}"


def session_of(row: Row) -> int:
    return int(row["session_id"][1:])


def turn(row: Row) -> int:
    return sum(message["role"] == "assistant" for message in row["messages"])


def one_of(*values: str) -> Value:
    return per_session(lambda rng, session: values[session % len(values)])


def letters(alphabet: str, length: int) -> Value:
    return lambda number, row, rng: "".join(rng.choice(alphabet) for _ in range(length))


CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SHAPES: list[tuple[str, Plant]] = [
    (
        "KV101 German",
        in_system(
            "KV101",
            "Es ist {}.\n",
            lambda n, row, r: german(row) + time.strftime(", %H:%M", time.gmtime(row["timestamp"])),
            "head",
            WORKS,
        ),
    ),
    (
        "KV101 Japanese",
        in_system("KV101", "現在時刻：{}\n", stamp("%Y年%m月%d日 %H時%M分%S秒"), "head", RAILWAY),
    ),
    ("KV101 French", in_system("KV101", "Il est {}.\n", stamp("%Hh%M"), "middle", CLINIC)),
    ("KV101 day first", in_system("KV101", "as of {}\n", stamp("%d.%m.%Y %H:%M"), "middle", ONCALL)),
    (
        "KV102 German",
        in_system(
            "KV102",
            "Heute ist {}.\n",
            lambda n, row, r: german(row, 86400 * (session_of(row) // 3)),
            "head",
            WORKS,
        ),
    ),
    ("KV102 Japanese", in_system("KV102", "本日は{}です。\n", daily("%Y年%m月%d日"), "head", RAILWAY)),
    ("KV102 compact", in_tool("KV102", " Fares loaded on {}.", daily("%Y%m%d"))),
    ("KV103 ULID", in_system("KV103", "(ref {})\n", letters(CROCKFORD, 26), "middle", ONCALL)),
    (
        "KV103 snowflake",
        in_system(
            "KV103",
            "Interaction {}.\n",
            lambda n, row, r: str(118 * 10**16 + r.randrange(10**16)),
            "head",
            CLINIC,
        ),
    ),
    (
        "KV103 trace",
        in_system(
            "KV103",
            "traceparent: {}\n",
            lambda n, row, r: f"00-{hexes(32)(n, row, r)}-{hexes(16)(n, row, r)}-01",
            "head",
            ONCALL,
        ),
    ),
    (
        "KV104 German",
        in_system(
            "KV104",
            "Sitzung: {}\n",
            per_session(lambda rng, s: f"{rng.getrandbits(40):010x}"),
            "middle",
            WORKS,
        ),
    ),
    (
        "KV104 container",
        in_system(
            "KV104",
            "You are attached to container {}.\n",
            per_session(lambda rng, s: f"kx-{rng.getrandbits(32):08x}"),
            "head",
            ONCALL,
        ),
    ),
    (
        "KV105 variables",
        in_system(
            "KV105",
            "Environment:\n{}\n",
            one_of(
                "SHELL=/bin/zsh\nLANG=de_CH.UTF-8\nNODE_ENV=test",
                "SHELL=/usr/bin/fish\nLANG=C\nNODE_ENV=production",
                "SHELL=/bin/sh\nLANG=ja_JP.UTF-8\nNODE_ENV=dev",
            ),
            "head",
            ONCALL,
        ),
    ),
    (
        "KV105 German",
        in_system(
            "KV105",
            "Arbeitsverzeichnis: {}\n",
            one_of("/daten/nord", "/daten/ost/alt", "/home/jan/berichte"),
            "head",
            WORKS,
        ),
    ),
    (
        "KV106 Japanese",
        in_system(
            "KV106",
            "残りトークン数：{}\n",
            lambda n, row, r: str(16000 - 411 * turn(row) - 13 * session_of(row)),
            "head",
            RAILWAY,
        ),
    ),
    (
        "KV106 dollars",
        in_system(
            "KV106",
            "Spent so far: ${}\n",
            lambda n, row, r: f"{0.0137 * (turn(row) + 1) + 0.0011 * session_of(row):.4f}",
            "middle",
            ONCALL,
        ),
    ),
    (
        "KV106 tokens left",
        in_system(
            "KV106",
            "You have {} tokens left.\n",
            lambda n, row, r: f"{200000 - 1873 * (turn(row) + 1):,}",
            "head",
            ONCALL,
        ),
    ),
    (
        "KV107 Japanese",
        in_system(
            "KV107",
            "お客様のお名前：{}様\n",
            one_of("田中花子", "佐藤健", "鈴木一郎", "渡辺直樹"),
            "head",
            RAILWAY,
        ),
    ),
    (
        "KV107 tariff",
        in_system(
            "KV107", "Tarif des Kunden: {}.\n", one_of("Basis", "Öko Plus", "Gewerbe M"), "middle", WORKS
        ),
    ),
    (
        "KV107 locale",
        in_system("KV107", "locale={}\n", one_of("de-CH", "pt-BR", "en-GB", "ja-JP"), "head", ONCALL),
    ),
]


def changed(code: str, agent: str, change: Callable[[Row, random.Random], None], tools: bool = True) -> Plant:
    """A plant that changes each row by itself and may be pointed at anywhere."""

    def plant(base: Base) -> Planted:
        planted = Planted(base.rows(agent, tools), code)
        planted.truth = copy.deepcopy(planted.rows)
        for number, row in enumerate(planted.rows):
            change(row, base.rng)
            places = [f"messages[{at}].content" for at in range(len(row["messages"]))]
            places += [f"tools[{at}]" for at in range(len(row.get("tools", ())))]
            planted.places[number] |= {(path, -1, -1) for path in places}
        return planted

    return plant


def crlf(row: Row, rng: random.Random) -> None:
    if turn(row) % 2:
        row["messages"][0]["content"] = row["messages"][0]["content"].replace("\n", "\r\n")


def decomposed(row: Row, rng: random.Random) -> None:
    if turn(row) % 2:
        row["messages"][0]["content"] = unicodedata.normalize("NFD", row["messages"][0]["content"])


def literal(row: Row, rng: random.Random) -> None:
    for message in row["messages"] if turn(row) % 2 else ():
        if message["role"] == "tool" and str(message["content"]).startswith("{"):
            message["content"] = repr(json.loads(message["content"]))
            assert ast.literal_eval(message["content"])


def required(row: Row, rng: random.Random) -> None:
    for tool in row["tools"]:
        rng.shuffle(tool["function"]["parameters"].get("required", []))


FORMS: list[tuple[str, Plant]] = [
    ("KV407 line ends of instructions", changed("KV407", WORKS, crlf, False)),
    ("KV407 Unicode form of instructions", changed("KV407", CLINIC, decomposed, False)),
    ("KV407 results as Python prints them", changed("KV407", ONCALL, literal)),
    ("KV203 required fields from a set", changed("KV203", ONCALL, required)),
]
