"""Chats of several kinds, as clients send them, made from a seed: what a learned estimate is measured on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.prompt import parse

CHINESE = """
数据中心的电力消耗正在快速增长。请用简单的语言解释一下什么是键值缓存。昨天晚上下了一场大雨,河水涨了很多。他打开窗户,看见院子里的花都开了。
这个函数的返回值为什么是空的?我们需要在下个月之前完成预算报告。她把书放在桌子上,转身走出了房间。机器学习模型的训练需要大量高质量的数据。
请帮我写一封邮件,告诉客户发货会推迟三天。北京的秋天天气晴朗,适合外出旅行。如果服务器没有响应,请检查网络连接和防火墙设置。
老人坐在门口,慢慢地讲起了年轻时候的故事。这家餐厅的豆腐和青菜都非常新鲜。科学家发现了一种新的材料,可以大大提高电池的寿命。
"""
RUSSIAN = """
Потребление электроэнергии в центрах обработки данных быстро растёт.
Объясните простыми словами, что такое кэш ключей и значений.
Вчера вечером прошёл сильный дождь, и вода в реке поднялась. Он открыл окно и увидел, что в саду расцвели цветы.
Почему эта функция возвращает пустое значение? Нам нужно закончить отчёт о бюджете до конца следующего месяца.
Она положила книгу на стол и молча вышла из комнаты. Для обучения модели требуется много качественных данных.
Помогите написать письмо клиенту о том, что отправка задержится на три дня. Осенью в Петербурге часто бывает туман.
Если сервер не отвечает, проверьте сетевое соединение и настройки межсетевого экрана.
Старик медленно рассказывал о молодости.
Учёные открыли новый материал, который значительно увеличивает срок службы аккумуляторов.
В этом ресторане готовят вкусную рыбу.
"""
ARABIC = """
يزداد استهلاك الكهرباء في مراكز البيانات بسرعة كبيرة. اشرح لي بكلمات بسيطة ما هي ذاكرة التخزين المؤقت للمفاتيح والقيم.
هطل مطر غزير مساء أمس وارتفع منسوب النهر. فتح النافذة ورأى أن الزهور قد تفتحت في الحديقة.
لماذا ترجع هذه الدالة قيمة فارغة؟ علينا إنهاء تقرير الميزانية قبل نهاية الشهر القادم.
وضعت الكتاب على الطاولة وخرجت من الغرفة.
يحتاج تدريب النموذج إلى كمية كبيرة من البيانات الجيدة. ساعدني في كتابة رسالة إلى العميل بأن الشحن سيتأخر ثلاثة أيام.
إذا لم يستجب الخادم فتحقق من اتصال الشبكة وإعدادات الجدار الناري. جلس الشيخ أمام الباب يروي قصص شبابه.
"""
HINDI = """
डेटा केंद्रों में बिजली की खपत तेज़ी से बढ़ रही है। कृपया सरल शब्दों में समझाइए कि कुंजी और मान का कैश क्या होता है।
कल शाम तेज़ बारिश हुई और नदी का पानी बढ़ गया। उसने खिड़की खोली और देखा कि बगीचे में फूल खिल गए हैं।
यह फ़ंक्शन खाली मान क्यों लौटाता है? हमें अगले महीने से पहले बजट की रिपोर्ट पूरी करनी है। वह किताब मेज़ पर रखकर कमरे से बाहर चली गई।
मॉडल को प्रशिक्षित करने के लिए बहुत सारा अच्छा डेटा चाहिए। ग्राहक को बताइए कि सामान तीन दिन देर से पहुँचेगा।
यदि सर्वर उत्तर नहीं देता तो नेटवर्क और फ़ायरवॉल की जाँच करें। बूढ़ा आदमी धीरे-धीरे अपनी जवानी की कहानी सुनाने लगा।
"""
_ENDS = {"zh": "。?", "ru": ".?", "ar": ".؟", "hi": "।?"}
_CODE = ("json/decoder.py", "argparse.py", "asyncio/queues.py", "heapq.py", "textwrap.py", "http/client.py", "csv.py")
_FIELDS = ("id", "name", "status", "price", "created_at", "quantity", "currency", "tags", "customer_id", "city", "note")


@cache
def _english() -> list[str]:
    paragraphs = [" ".join(part.split()) for topic in topics.topics.values() for part in topic.split("\n\n")]
    return [part for part in paragraphs if len(part) > 80 and "::=" not in part]


@cache
def _code() -> list[str]:
    library = Path(json.__file__).parents[1]
    return [line for name in _CODE for line in (library / name).read_text().splitlines()]


@cache
def _sentences(language: str) -> list[str]:
    text = {"zh": CHINESE, "ru": RUSSIAN, "ar": ARABIC, "hi": HINDI}[language]
    for end in _ENDS[language]:
        text = text.replace(end, end + "\x00")
    return [part.strip() for part in text.split("\x00") if part.strip()]


def english(rng: random.Random) -> str:
    return "\n\n".join(rng.sample(_english(), rng.randint(1, 8)))


def code(rng: random.Random) -> str:
    start, lines = rng.randrange(len(_code()) - 200), rng.randint(15, 200)
    listing = "\n".join(_code()[start : start + lines])
    return f"Please review this change and say what could go wrong:\n\n```python\n{listing}\n```"


def written_in(language: str) -> Callable[[random.Random], str]:
    def text(rng: random.Random) -> str:
        between = "" if language == "zh" else " "
        return between.join(rng.choices(_sentences(language), k=rng.randint(2, 40)))

    return text


def record(rng: random.Random) -> str:
    def value(field: str) -> Any:
        return {
            "id": f"{rng.getrandbits(64):016x}",
            "price": round(rng.uniform(1, 9_999), 2),
            "quantity": rng.randint(1, 500),
            "created_at": f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:15:00Z",
            "tags": rng.sample(("new", "sale", "fragile", "gift", "bulk"), rng.randint(0, 3)),
            "customer_id": rng.randint(10_000, 99_999),
        }.get(field) or " ".join(rng.choice(_english()).split()[:3])

    rows = [{name: value(name) for name in rng.sample(_FIELDS, 6)} for _ in range(rng.randint(1, 30))]
    return json.dumps(rows, indent=2 if rng.random() < 0.3 else None)


Text = Callable[[random.Random], str]


def _conversation(text: Text, rng: random.Random) -> dict[str, Any]:
    turns = [{"role": "system", "content": "You are a helpful assistant."}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(0, 3)):
        turns += [{"role": "user", "content": text(rng)}, {"role": "assistant", "content": text(rng)}]
    return {"messages": [*turns, {"role": "user", "content": text(rng)}]}


def _tool_traffic(rng: random.Random) -> dict[str, Any]:
    known = ("search_orders", "get_weather", "update_ticket", "run_query", "send_message")
    names = rng.sample(known, rng.randint(1, 4))
    tools = [
        {"type": "function", "function": {"name": name, "description": rng.choice(_english())[:200], "parameters": {
            "type": "object", "properties": {field: {"type": "string"} for field in rng.sample(_FIELDS, 4)}}}}
        for name in names
    ]  # fmt: skip
    turns: list[dict[str, Any]] = [{"role": "user", "content": rng.choice(_english())[:300]}]
    for number in range(rng.randint(1, 4)):
        arguments = json.dumps({"name": rng.choice(_FIELDS), "quantity": rng.randint(1, 99)})
        call = {"id": f"call_{number}", "type": "function", "function": {"name": names[0], "arguments": arguments}}
        turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": f"call_{number}", "content": record(rng)})
    return {"messages": turns, "tools": tools}


def _mixed(rng: random.Random) -> dict[str, Any]:
    texts = (english, code, record, *map(written_in, ("zh", "ru", "ar", "hi")))
    return _conversation(lambda same: rng.choice(texts)(same), rng)


KINDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "english": lambda rng: _conversation(english, rng),
    "code": lambda rng: _conversation(code, rng),
    "chinese": lambda rng: _conversation(written_in("zh"), rng),
    "russian": lambda rng: _conversation(written_in("ru"), rng),
    "arabic": lambda rng: _conversation(written_in("ar"), rng),
    "hindi": lambda rng: _conversation(written_in("hi"), rng),
    "tools": _tool_traffic,
    "mixed": _mixed,
}


def prompts(kind: str, seed: int, count: int) -> list[Prompt]:
    rng = random.Random(seed)
    bodies = [json.dumps({"model": "m", **KINDS[kind](rng)}).encode() for _ in range(count)]
    return [parse(Api.OPENAI_CHAT, body, body_bytes=len(body), complete=True) for body in bodies]
