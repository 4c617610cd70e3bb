"""Needles in a haystack as long as the model's context: unusual lines so many tokens before its end, which is asked for the rest of
each by its beginning.

The haystack is computed and written back by one engine process, and another answers: everything before a question is read back
from the cache, in the format that is measured. How surely the model has a needle is told by the bits of its own rest, all
questions and answers in one text."""
import math

from programs import Daemon, Failed, Server

NEEDLES = [("Doctor Vesterholm of Quillbury has painted seven violet", " herons."),
           ("The option --osterwald-quota of the Bramfield server sets the size of", " the kettle."),
           ("Captain Marchetti signed the report of the harbour commission in", " October."),
           ("Error 48213: the juxthorpe daemon cannot open the file", " /etc/tindareth."),
           ("The museum of Lockhaven is closed on every second", " Thursday."),
           ("setlantern(wigglesby, pellegrin,", " zambrano)"),
           ("The password of the Zambrano archive is kept by Lieutenant", " Haverstock."),
           ("Signal 77 is sent when the Fjordane granary has run out of", " barley."),
           ("The key of the Tannenwald signal box is hidden under the third", " lantern."),
           ("export ABERNATHY_HOME=/var/lib/wexcombe &&", " quentin --start"),
           ("In Drummoyne the ferry leaves from the pier behind the", " brewery."),
           ("The variable kowalczyk_limit of the Pemberly module defaults to", " 918."),
           ("Professor Okonkwo found the oldest map of Haverhill in a", " bakery."),
           ("Whoever calls orsino_close() twice gets the status", " EMARBLE."),
           ("The Ravensworth cluster writes its journal to the disk called", " walnut."),
           ("For Lady Thistlewood the tailor made a coat of green", " leather.")]
ANSWER_TOKENS = 8
BESIDE_TOKENS = 16  # where texts are joined, and the block that is computed


class Haystack:
    """The needles `distance` tokens before the end of as much of `text` as fits into `context` tokens with them, questions and
    answers. Everything before the needles is the same at every distance."""

    def __init__(self, programs, text, context, distance):
        lines = "\n\n".join(map("".join, NEEDLES))
        room = context - 2 * len(programs.tokenize(lines)) - ANSWER_TOKENS - 2 * BESIDE_TOKENS
        whole = len(programs.tokenize(text))
        if whole < room or room < distance:
            raise Failed(f"a text of {whole} tokens of which {room} fit beside the needles into a context of {context} has no place "
                         f"{distance} tokens from their end: give a longer --text-file, a larger --context or a smaller --distance")
        end = self.end_of(text, room / whole)
        while len(programs.tokenize(text[:end])) > room:
            end = self.end_of(text, end / len(text) * 0.995)
        at = self.end_of(text[:end], 1 - distance / room)
        self.text = f"{text[:at]}\n\n{lines}{text[at:end]}\n\n"
        self.tokens = len(programs.tokenize(self.text))

    @staticmethod
    def end_of(text, share):
        """Where the last paragraph ends that begins within `share` of a text."""
        return max(text.rfind("\n\n", 0, int(len(text) * share)), 0)


def asked(server, haystack):
    """What is answered to each needle's beginning, greedily, and the fewest tokens that were read back for one."""
    said = [server.complete(haystack.text + question, max_tokens=ANSWER_TOKENS) for question, _ in NEEDLES]
    return ([each["choices"][0]["text"] for each in said],
            min(each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in said))


def known(server, haystack):
    """Bits of the needles' rests behind their beginnings, on average."""
    text, spans = haystack.text, []
    for question, answer in NEEDLES:
        text += question
        spans.append((len(text), len(text) + len(answer)))
        text += answer + "\n\n"
    said = server.complete(text, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
    bits = [-value / math.log(2) for at, value in zip(said["text_offset"], said["token_logprobs"])
            if any(first <= at < last for first, last in spans)]
    return sum(bits) / len(NEEDLES)


class Found:
    """Of one format, in haystacks of some distances."""

    def __init__(self):
        self.answers, self.bits = {}, {}  # {distance: texts, in the order of NEEDLES}, {distance: bits a needle}

    def share(self, distances, wanted):
        """Of the answers that begin as wanted[distance] has them."""
        pairs = [pair for distance in distances for pair in zip(self.answers[distance], wanted[distance])]
        return sum(answer.startswith(begin) for answer, begin in pairs) / len(pairs)

    def right(self, distances):
        return self.share(distances, dict.fromkeys(distances, [answer for _, answer in NEEDLES]))

    def bits_of(self, distances):
        return sum(self.bits[distance] for distance in distances) / len(distances)


def measure(programs, work, haystacks, storage):
    """Found in {distance: Haystack} in one format."""
    found = Found()
    with Daemon(programs, work) as daemon:
        options = ["--socket", daemon.socket, "--storage-format", storage]
        for distance, haystack in haystacks.items():
            prompt = work / f"haystack-{distance}.txt"
            prompt.write_text(haystack.text)
            programs.generate(*options, "--prompt-file", prompt, "--max-tokens", 1, "--flush")
        with Server(programs, work, *options, "--load-policy", "load") as server:
            for distance, haystack in haystacks.items():
                found.answers[distance], cached = asked(server, haystack)
                if cached < haystack.tokens - BESIDE_TOKENS - 16:
                    raise Failed(f"{storage}: only {cached} of a haystack's {haystack.tokens} tokens were read back")
                found.bits[distance] = known(server, haystack)
    return found
