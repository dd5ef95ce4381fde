"""What the words beside a slot say about it: `Session: {}`, `Ordner: {}`, `残り{}`, `{}% used`."""

import re

from kvtool.prompts.slots import Slot

REACH = 60
"""Characters before a slot, and half as many behind it, that count as its label."""


def _words(spaced: str, east: str) -> re.Pattern[str]:
    """A pattern of whole words of scripts that set spaces, and of words of scripts that do not."""
    words = "|".join(spaced.split())
    return re.compile(rf"(?<![^\W\d_])(?:{words})(?![^\W\d_])|{'|'.join(east.split())}", re.I)


REQUEST = _words(
    r"""request|req|trace|span|correlation|nonce|billing|cch|invocation|call|message|cache.?bust|run|build
    anfrage\w*|vorgang\w*|requ[eê]te|petici[oó]n|solicitud|richiesta|запрос\w*""",
    "リクエスト 要求番号 请求 追踪 요청",
)
SESSION = _words(
    r"""session|conversation|thread|chat|scratch(?:pad)?|te?mp|temporary|sandbox|workspace|container|job|run
    sitzung\w*|gespr[aä]ch\w*|sesi[oó]n|conversaci[oó]n|sess[aã]o|sessione|conversazione|сесси\w*|диалог\w*""",
    "/tmp/ セッション 会話 会话 對話 세션 대화",
)
ENVIRONMENT = _words(
    r"""cwd|working.dir\w*|current.dir\w*|director(?:y|ies)|folder|project|repo(?:sitory)?|git|branch|commit|head
    host(?:name)?|machine|platform|operating.system|os|shell|kernel|uname|files?|tree|environment|env|version
    python|node|path|status|tabs?|editor|runtime|container|image|cluster|namespace|kube\w*(?:.context)?|server
    \w*verzeichnis|ordner|projekt|zweig|rechner|umgebung|betriebssystem|dateien
    directorio|carpeta|proyecto|rama|entorno|archivos|sistema.operativo
    r[eé]pertoire|dossier|projet|branche|environnement|fichiers|cartella|progetto|diret[oó]rio|pasta
    каталог|папка|проект|ветка""",
    "ディレクトリ フォルダ ブランチ 環境 ホスト プロジェクト 目录 文件夹 分支 环境 主机 项目 폴더 프로젝트",
)
COUNTER = _words(
    r"""remaining|left|used|usage|tokens?|budget|turns?|messages?|steps?|counts?|attempts?|retry|retries
    iteration|calls?|number|no\.|context|credits?|quota|round|progress|total|elapsed|spent|cost
    verbleibend\w*|übrig|verbraucht\w*|schritte?|nachricht(?:en)?|nr\.?|versuch\w*|runde|guthaben|kontext\w*
    restantes?|quedan?|usad[oa]s?|paso|mensajes?|intento|turno|saldo|gastado
    restante?s|utilis[eé]s?|étape|essai|tour|rimanenti|usati|passo|messaggi[o]?|tentativo
    осталось|шаг|попытка""",
    "% # 残り 使用 ステップ 回目 件目 番目 トークン 剩余 已用 步骤 次数 남은 단계",
)
USER = _words(
    r"""user(?:name)?|customer|client|member|caller|guest|patient|student|name|e-?mail|account|plan|membership
    profile|contact|status|tier|subscription|locale|language|time.?zone|country|region|city|role|company
    organi[sz]ation|team|helping|assisting|talking.to|speaking.(?:to|with)|chatting.with|on.behalf.of
    logged.in.as|signed.in.as|address|pupil|learner|reader|visitor|shopper|buyer|passenger|traveller|traveler
    applicant|candidate|employee|resident|player|parent|grade
    kund(?:e|in|en)\w*|\w*nutzer\w*|anrufer\w*|tarif|vertrag|sprache|wohnort|land|rolle|mitglied\w*|zeitzone
    cliente|usuari[oa]|nombre|correo|idioma|pa[ií]s|ciudad|rol|tarifa|plan[oa]
    cliente?|utilisat(?:eur|rice)|nom|langue|pays|ville|r[oô]le|abonnement|utente|nome|lingua|paese|citt[aà]
    пользовател\w*|клиент\w*|имя|язык|город|страна|тариф""",
    "お客様 名前 氏名 ユーザー 会員 言語 地域 プラン 用户 客户 姓名 会员 语言 国家 城市 고객 사용자 이름",
)
CONTEXT = _words(
    r"""memor(?:y|ies)|context|documents?|retrieved|knowledge|search.results?|passages?|snippets?|notes?|facts
    excerpts?|articles?|references?|recall(?:ed)?|relevant|rag|summary|history|observations?|remember(?:ed)?
    erinnerung\w*|ged[aä]chtnis|dokumente?|wissen\w*|treffer|auszüge|notizen|fakten
    memoria|documentos?|contexto|notas|fragmentos|m[eé]moire|contexte|extraits|documenti|ricordi
    память|документы|контекст|заметки""",
    "記憶 メモ 資料 文書 検索結果 知識 记忆 文档 资料 检索 知识 기억 문서 자료",
)


def label(slot: Slot) -> str:
    """The stable text of the slot's line close to it; the line above where the slot opens its line."""
    before, after = slot.line()
    if not before.strip(" \t-*>#<[("):
        lines = slot.before.rstrip().rsplit("\n", 1)
        before = lines[-1] if lines else ""
    before = re.split(r"[.!?]\s|。", before)[-1]
    return before[-REACH:] + " \0 " + re.split(r"[.!?](?:\s|$)|。", after)[0][: REACH // 2]


def nearest(slot: Slot, *patterns: re.Pattern[str]) -> re.Pattern[str] | None:
    """The pattern whose word stands closest to the slot, None where none matches its label."""
    before, after = label(slot).split("\0")
    best: tuple[int, re.Pattern[str]] | None = None
    for pattern in patterns:
        distances = [len(before) - match.end() for match in pattern.finditer(before)]
        distances += [match.start() + 10 for match in pattern.finditer(after)]
        if distances and (best is None or min(distances) < best[0]):
            best = (min(distances), pattern)
    return best[1] if best else None
