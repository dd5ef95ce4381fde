"""Names of months and weekdays in the languages that prompts are written in, as one pattern each.

Forms as they stand beside a day (genitive where a language has one), checked against CLDR in babel 2.19.
"""

import re

_MONTHS = """
January February March April May June July August September October November December
Januar Februar März Mai Juni Juli Oktober Dezember Jänner
janvier février mars avril mai juin juillet août septembre octobre novembre décembre
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
janeiro fevereiro março maio junho julho setembro outubro novembro dezembro
januari februari maart mei augustus maj augusti marts desember
tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta elokuuta syyskuuta lokakuuta
marraskuuta joulukuuta
stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
ledna února března dubna května června července srpna září října listopadu prosince
января февраля марта апреля мая июня июля августа сентября октября ноября декабря
січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня
Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık
január február március április május június július augusztus szeptember október
ianuarie februarie martie aprilie iunie iulie septembrie octombrie noiembrie decembrie
Maret Agustus
Ιανουαρίου Φεβρουαρίου Μαρτίου Απριλίου Μαΐου Ιουνίου Ιουλίου Αυγούστου Σεπτεμβρίου Οκτωβρίου Νοεμβρίου
Δεκεμβρίου
"""
_SHORT_MONTHS = """
Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mrz Okt Dez janv févr avr juil déc ene abr ago dic
gen mag giu lug set ott fev mai out dez mrt maj des sty lut kwi cze lip sie wrz paź lis gru
янв февр мар апр июн июл авг сент окт нояб дек
"""
_WEEKDAYS = """
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonnabend Sonntag
lundi mardi mercredi jeudi vendredi samedi dimanche
lunes martes miércoles jueves viernes sábado domingo
lunedì martedì mercoledì giovedì venerdì sabato domenica
segunda-feira terça-feira quarta-feira quinta-feira sexta-feira
maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
måndag tisdag onsdag torsdag fredag lördag söndag mandag tirsdag lørdag søndag
maanantai tiistai keskiviikko torstai perjantai lauantai sunnuntai
poniedziałek wtorek środa czwartek piątek sobota niedziela
pondělí úterý středa čtvrtek pátek sobota neděle
понедельник вторник среда четверг пятница суббота воскресенье
понеділок вівторок середа четвер субота неділя
Pazartesi Salı Çarşamba Perşembe Cuma Cumartesi Pazar
hétfő kedd szerda csütörtök péntek szombat vasárnap
miercuri vineri sâmbătă duminică Senin Selasa Kamis Jumat Sabtu Minggu
Δευτέρα Τρίτη Τετάρτη Πέμπτη Παρασκευή Σάββατο Κυριακή
"""
_SHORT_WEEKDAYS = "Mon|Tues|Tue|Wed|Thurs|Thur|Thu|Fri|Sat|Sun"


def any_of(words: str) -> str:
    """A pattern for the words in `words` in which each letter is looked at once, whatever their number."""
    tree: dict[str, object] = {}
    for word in words.split():
        node = tree
        for letter in word.lower():
            inner = node.setdefault(letter, {})
            assert isinstance(inner, dict)
            node = inner
        node[""] = {}
    return _pattern(tree)


def _pattern(tree: dict[str, object]) -> str:
    ways = []
    for letter, inner in tree.items():
        if letter:
            assert isinstance(inner, dict)
            ways.append(re.escape(letter) + _pattern(inner))
    if not ways:
        return ""
    many = len(ways) > 1 or "" in tree
    return (f"(?:{'|'.join(ways)})" if many else ways[0]) + ("?" if "" in tree else "")


MONTH = rf"(?i:{any_of(_MONTHS + _SHORT_MONTHS)})(?![^\W\d_])\.?"
"""A month by its name or its usual short form."""
WEEKDAY = rf"(?:(?i:{any_of(_WEEKDAYS)})|{_SHORT_WEEKDAYS})(?![^\W\d_])\.?"
"""A weekday by its name; short forms in English alone, capitalised, since they are words elsewhere."""
