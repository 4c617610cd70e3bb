#!/usr/bin/env python3
"""The official `openai` client, unmodified, against `kvtier-engine serve`: what it asks, and what it is answered.

    openai_client_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m --work DIR

Makes a virtual environment with the client in DIR. Exit status 77, skipped, where it cannot be installed.
"""

import concurrent.futures
import json
import math
import subprocess
from pathlib import Path

import served_engine
from served_engine import ARGUMENTS, PROMPT, ServedTest, openai


class OpenAiClientTest(ServedTest):
    def test_models_lists_the_one(self):
        self.assertEqual([model.id for model in self.client.models.list().data], ["docs"])
        self.assertEqual(self.client.models.retrieve("docs").id, "docs")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_a_completion_says_what_it_used_and_found(self):
        prompt = PROMPT + " these, in this order, and no others"
        first, second = self.complete(prompt), self.complete(prompt)
        self.assertEqual(first.object, "text_completion")
        self.assertEqual(first.choices[0].text, second.choices[0].text)
        self.assertEqual(first.choices[0].finish_reason, "length")
        self.assertEqual(first.usage.completion_tokens, 16)
        self.assertEqual(first.usage.total_tokens, first.usage.prompt_tokens + 16)
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, 16)

    def test_another_cache_salt_finds_nothing(self):
        prompt = PROMPT + " of the salted kind"
        self.complete(prompt)
        salted = self.complete(prompt, extra_body={"cache_salt": "salt"})
        self.assertEqual(salted.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(salted.choices[0].text, self.complete(prompt).choices[0].text)

    def test_token_ids_are_a_prompt_too(self):
        self.assertEqual(self.complete([5, 6, 7, 8]).usage.prompt_tokens, 4)

    def test_several_prompts_in_one_request_answer_as_one_each(self):
        prompts = [PROMPT, [5, 6, 7, 8], "The second prompt says"]
        one_each = [self.complete(prompt) for prompt in prompts[:1] + prompts[2:]]
        both = self.complete([prompts[0], prompts[2]], echo=True)
        self.assertEqual([c.index for c in both.choices], [0, 1])
        self.assertEqual([c.text for c in both.choices], [p + o.choices[0].text for p, o in zip([prompts[0], prompts[2]], one_each)])
        self.assertEqual(both.usage.prompt_tokens, sum(o.usage.prompt_tokens for o in one_each))
        self.assertEqual(both.usage.completion_tokens, 32)
        sampled = dict(n=2, temperature=0.9, seed=3, max_tokens=8, extra_body={"ignore_eos": True})
        lists = self.complete([prompts[1], [9, 10]], **sampled)
        self.assertEqual([c.index for c in lists.choices], [0, 1, 2, 3])
        self.assertEqual([c.text for c in lists.choices[:2]], [c.text for c in self.complete(prompts[1], **sampled).choices])
        texts, ends = [""] * 2, 0
        for chunk in self.complete([prompts[0], prompts[2]], stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends += choice.finish_reason == "length"
        self.assertEqual((texts, ends), ([o.choices[0].text for o in one_each], 2))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(["fine", "word " * 9000])
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_stream_adds_up_to_the_whole(self):
        whole = self.complete(max_tokens=32)
        chunks = list(self.complete(max_tokens=32, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertGreater(len(chunks), 8)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 32)
        self.assertIsNone(chunks[0].usage)

    def test_a_chat_answers_as_its_rendered_text_does(self):
        messages = [{"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "What is a"}, {"type": "text", "text": "file?"}]}]
        chat = self.client.chat.completions.create(model="docs", messages=messages, max_completion_tokens=12, temperature=0)
        text = self.complete("system: Be brief.\nuser: What is a\nfile?\nassistant:", max_tokens=12)
        self.assertEqual(chat.choices[0].message.content, text.choices[0].text)
        self.assertEqual(chat.choices[0].message.role, "assistant")
        stream = self.client.chat.completions.create(model="docs", messages=messages, max_tokens=12, temperature=0, stream=True)
        chunks = list(stream)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), chat.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")

    def test_seeds_decide_and_n_gives_so_many(self):
        one = self.complete(temperature=0.9, seed=7, n=3, max_tokens=12, extra_body={"ignore_eos": True})
        two = self.complete(temperature=0.9, seed=7, n=3, max_tokens=12, extra_body={"ignore_eos": True})
        self.assertEqual([c.text for c in one.choices], [c.text for c in two.choices])
        self.assertEqual(len({c.text for c in one.choices}), 3)
        self.assertEqual([c.index for c in one.choices], [0, 1, 2])
        self.assertEqual(one.usage.completion_tokens, 36)

    def test_stop_texts_end_an_answer_before_them(self):
        text = self.complete(max_tokens=32).choices[0].text
        stop = text[20:26]
        for stream in (False, True):
            answer = self.complete(max_tokens=32, stop=[stop, "never said"], stream=stream)
            choices = [c.choices[0] for c in answer] if stream else answer.choices
            self.assertEqual("".join(c.text for c in choices), text[:text.index(stop)])
            self.assertEqual(choices[-1].finish_reason, "stop")

    def test_logprobs_come_with_the_tokens(self):
        answer = self.complete(logprobs=3, max_tokens=5).choices[0].logprobs
        self.assertEqual(len(answer.tokens), 5)
        self.assertTrue(all(logprob <= 0 for logprob in answer.token_logprobs))
        self.assertTrue(all(len(top) == 3 for top in answer.top_logprobs))
        self.assertEqual(answer.token_logprobs[0], max(answer.top_logprobs[0].values()))
        chat = self.client.chat.completions.create(model="docs", messages=[{"role": "user", "content": "x"}], max_tokens=4,
                                                   temperature=0, logprobs=True, top_logprobs=2)
        content = chat.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(c.bytes) for c in content).decode(), chat.choices[0].message.content)
        self.assertEqual(content[0].logprob, content[0].top_logprobs[0].logprob)

    def test_the_logprobs_of_a_prompt_are_those_that_a_harness_reads(self):
        """As lm-evaluation-harness asks ("local-completions"), and what it reads of the answers."""
        self.complete(PROMPT)  # nothing of it may come from the cache
        for tokens in ([5, 6, 7, 8] * 40, PROMPT, [PROMPT, "A word"], [[5, 6, 7], [8, 9]]):
            for more in ({"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 1, "n": 2}):
                with self.subTest(tokens=str(tokens)[:30], more=more):
                    answer = self.complete(tokens, logprobs=1, echo=True, temperature=0, seed=1234, **more)
                    several = isinstance(tokens[0], list) or isinstance(tokens, list) and isinstance(tokens[0], str)
                    prompts = len(tokens) if several else 1
                    self.assertEqual(len(answer.choices), prompts * more.get("n", 1))
                    self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)
                    for choice in answer.choices:
                        told = choice.logprobs
                        self.assertEqual(choice.finish_reason, "length")
                        self.assertEqual((told.token_logprobs[0], told.top_logprobs[0]), (None, None))
                        self.assertTrue(all(logprob <= 0 for logprob in told.token_logprobs[1:]))
                        self.assertEqual("".join(told.tokens), choice.text)
                        for token, logprob, top in list(zip(told.tokens, told.token_logprobs, told.top_logprobs))[1:]:
                            self.assertIn(len(top), (1, 2))
                            self.assertEqual(top[token], logprob)
                        for token, offset in zip(told.tokens, told.text_offset):
                            self.assertTrue(choice.text[offset:].startswith(token))
                        if more["max_tokens"] == 1:  # greedy
                            self.assertEqual(told.token_logprobs[-1], max(told.top_logprobs[-1].values()))
        text = "The second prompt says"
        whole = self.complete(text, logprobs=2, echo=True, max_tokens=3).choices[0]
        parts = [c.choices[0] for c in self.complete(text, logprobs=2, echo=True, max_tokens=3, stream=True)]
        self.assertEqual("".join(part.text for part in parts), whole.text)
        told = [part.logprobs for part in parts if part.logprobs]
        self.assertEqual(sum((part.token_logprobs for part in told), []), whole.logprobs.token_logprobs)
        self.assertEqual(sum((part.text_offset for part in told), []), whole.logprobs.text_offset)

    def test_the_logprobs_of_a_prompt_are_those_of_the_score(self):
        text = " ".join(f"{PROMPT} {i}." for i in range(6))
        told = self.complete(text, logprobs=0, echo=True, max_tokens=0).choices[0].logprobs
        file = Path(self.server.folder.name, "text")
        file.write_text(text)
        scored = json.loads(subprocess.run(
            [ARGUMENTS.engine, "score", "--model", ARGUMENTS.model, "--text-file", file, "--storage-format", "f32", "--json"],
            capture_output=True, check=True).stdout)
        bits = -sum(told.token_logprobs[1:]) / math.log(2)
        self.assertEqual(len(told.tokens), scored["tokens"] + 1)
        size = len(text.encode()) - len(told.tokens[0].encode())
        self.assertAlmostEqual(bits / size, scored["formats"][0]["bits_per_byte"], places=4)

    def test_a_context_is_filled_and_no_token_more(self):
        context = self.client.models.list().data[0].max_model_len
        for left, most in ((2, 100), (1, 1), (2, None)):
            answer = self.complete([5] * (context - left), max_tokens=most, extra_body={"ignore_eos": True})
            self.assertEqual(answer.usage.total_tokens, context)
            self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(self.complete([5] * context, max_tokens=0).usage.total_tokens, context)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete([5] * context, max_tokens=1)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_history_of_tool_calls_without_content_is_taken(self):
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls},
                    {"role": "tool", "name": "f", "content": "y", "tool_call_id": "1"}]
        chat = self.client.chat.completions.create(model="docs", messages=messages, max_tokens=4, temperature=0)
        self.assertEqual(chat.choices[0].message.content,
                         self.complete("user: x\nassistant: \ntool: y\nassistant:", max_tokens=4).choices[0].text)

    def test_no_error_tells_where_the_model_lies(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="docs", messages=[{"role": "broken", "content": "x"}])
        self.assertIn("chat_template", str(caught.exception))
        self.assertNotIn("/", caught.exception.message)

    def test_echo_repeats_the_prompt(self):
        plain = self.complete().choices[0].text
        self.assertEqual(self.complete(echo=True).choices[0].text, PROMPT + plain)
        self.assertEqual("".join(c.choices[0].text for c in self.complete(echo=True, stream=True)), PROMPT + plain)

    def test_beam_search_finds_no_worse_an_answer_than_greed(self):
        beam = {"use_beam_search": True, "best_of": 4, "ignore_eos": True}
        found = self.complete(max_tokens=8, logprobs=0, n=2, extra_body=beam)
        greedy = self.complete(max_tokens=8, logprobs=0, extra_body={"ignore_eos": True})
        self.assertEqual(len(found.choices), 2)
        self.assertGreaterEqual(sum(found.choices[0].logprobs.token_logprobs) + 1e-4, sum(greedy.choices[0].logprobs.token_logprobs))

    def test_sixteen_at_once_answer_as_one_at_a_time(self):
        def ask(i):
            return self.complete(PROMPT + f" number {i}" * (i + 1), temperature=0.8, seed=i, max_tokens=24).choices[0].text

        alone = [ask(i) for i in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, range(16)))
        self.assertEqual(together, alone)

    def test_errors_have_their_types_and_name_the_field(self):
        for options, field in [({"temperature": -1}, "temperature"), ({"n": 99}, "n"), ({"frequency_penalty": 1}, "frequency_penalty"),
                               ({"stop": [""]}, "stop"), ({"extra_body": {"colour": 1}}, "colour"), ({"best_of": 3}, "best_of"),
                               ({"prompt": ["a", []]}, "prompt"), ({"max_tokens": -1}, "max_tokens")]:
            with self.subTest(field), self.assertRaises(openai.BadRequestError) as caught:
                self.complete(**options)
            self.assertEqual(caught.exception.param, field)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("word " * 9000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="other", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="docs", messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])
        self.assertIn("no tools here", str(caught.exception))
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()


if __name__ == "__main__":
    served_engine.main()
