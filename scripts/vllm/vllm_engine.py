"""One vLLM engine in a process of its own, for vllm_demo.py, vllm_bench.py and tests/vllm/engine_test.py.

Run as a program it answers the prompts that it reads, a JSON object a line, until there are no more. It reads
{"prompts": [text, or token ids], "max_tokens": n, "forget": whether its own prefix cache is emptied before, "stores": whether
kvtier's connector stores what is computed}; it answers
with what vLLM counted meanwhile, how long all of it and each step took, and of each prompt with its tokens, the answer's and their log
probabilities, and the time to the first of them.
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib

BUNDLED = pathlib.Path(__file__).resolve().parents[2] / "engine_adapter" / "models" / "docs-4m"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
# Of the connector's counters (kvtier/vllm/stats.py), as they are called here.
COUNTED = {"blocks_loaded": "loaded", "blocks_from_disk": "from_disk", "blocks_failed": "failed", "blocks_stored": "stored",
           "blocks_dropped": "dropped", "faults": "faults"}


class Engine:
    """The process. What vLLM prints goes to `log`."""

    def __init__(self, log, model, daemon=None, connector=None, transfer=None, random_weights=False,
                 environment=None, **engine):
        """`daemon`: the socket of kvtierd; None: without the connector. `connector`: its options. `transfer`: another connector, as
        vLLM's KVTransferConfig has it. `random_weights`: the same in every process. `environment`: variables of its own. `engine`: vLLM's arguments."""
        if daemon:
            transfer = {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm",
                        "kv_load_failure_policy": "recompute",
                        "kv_connector_extra_config": {"kvtier.socket": str(daemon), **(connector or {})}}
        options = {"model": str(model), "transfer": transfer, "random_weights": random_weights, "engine": engine}
        self.process = subprocess.Popen([sys.executable, __file__, json.dumps(options)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, text=True,
                                        env={**ENVIRONMENT, **os.environ, **(environment or {})})
        self.answer()

    def begin(self, prompts, forget=False, max_tokens=16, logprobs=None, stores=True):
        asked = {"prompts": prompts, "max_tokens": max_tokens, "forget": forget, "logprobs": logprobs, "stores": stores}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, prompts, **how):
        self.begin(prompts, **how)
        return self.answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=120)


class Server:
    """`vllm serve` on a free port of the loopback, with the bundled model and kvtier."""

    def __init__(self, log, daemon, *flags, role="kv_both"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        transfer = {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm", "kv_role": role,
                    "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"kvtier.socket": str(daemon)}}
        # What `vllm serve` runs; the command itself wants a package of that name, which the CPU build's is not.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(BUNDLED), "--host", "127.0.0.1",
                   "--port", str(port), "--enforce-eager", "--seed", "0", "--kv-transfer-config", json.dumps(transfer), *flags]
        # With the engine in a process of its own, and requests that are for developers.
        environment = {**ENVIRONMENT, **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"}
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def is_up(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"vllm serve ended with {self.process.returncode}")
        try:
            return self.ask("/health") is not None
        except OSError:
            return False

    def complete(self, prompt, max_tokens=16):
        return json.loads(self.ask("/v1/completions", {"model": str(BUNDLED), "prompt": prompt, "max_tokens": max_tokens,
                                                       "temperature": 0}))

    def counted(self, name):
        """The sum of one of vLLM's metrics."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.ask("/metrics").splitlines()
                   if line.startswith(f"vllm:{name}"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(options):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    transfer = options["transfer"] and KVTransferConfig(kv_role="kv_both", **options["transfer"])
    engine = {"enforce_eager": True, "seed": 0, "disable_log_stats": False, **options["engine"]}
    if options["random_weights"]:
        engine |= {"load_format": "dummy", "skip_tokenizer_init": True}
    llm = LLM(model=options["model"], kv_transfer_config=transfer, **engine)
    if options["random_weights"]:
        llm.apply_model(make_weights)
    return llm


def make_weights(model):
    """Those of a dummy model are so small that all its logits are alike."""
    import torch

    for name, weights in model.named_parameters():
        generator = torch.Generator(device=weights.device)
        generator.manual_seed(zlib.crc32(name.encode()))
        if weights.dim() > 1:
            weights.data.normal_(0, 0.02, generator=generator)
        else:
            weights.data.fill_(1.0)


class Counted:
    """What vLLM's steps say of themselves. Its own metrics leave out the steps that have no output, of which those that
    begin loads are, up to 0.24 at least."""

    def __init__(self, llm):
        self.llm = llm
        self.sums = dict.fromkeys(("own", "external", *COUNTED.values()), 0)
        self.get_output = llm.llm_engine.engine_core.get_output
        llm.llm_engine.engine_core.get_output = self.counting
        self.step, self.steps = llm.llm_engine.step, []  # how long each took, in seconds
        llm.llm_engine.step = self.timing

    def timing(self):
        began = time.perf_counter()
        outputs = self.step()
        self.steps.append(time.perf_counter() - began)
        return outputs

    def counting(self):
        outputs = self.get_output()
        if (stats := outputs.scheduler_stats) is not None:
            self.sums["own"] += stats.prefix_cache_stats.hits
            if stats.connector_prefix_cache_stats is not None:
                self.sums["external"] += stats.connector_prefix_cache_stats.hits
            for name, value in (stats.kv_connector_stats or {}).items():
                if name in COUNTED:
                    self.sums[COUNTED[name]] += value
        return outputs

    def so_far(self):
        preemptions = sum(m.value for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")
        return {**self.sums, "preemptions": preemptions}


def forget(llm, one):
    """Empties its own prefix cache, for which no block may be in use: stores are seen to have ended in steps."""
    until = time.monotonic() + 60
    while not llm.reset_prefix_cache():
        if time.monotonic() > until:
            raise TimeoutError("vLLM's prefix cache stays in use")
        llm.generate({"prompt_token_ids": [7]}, one, use_tqdm=False)


@contextlib.contextmanager
def without_stores():
    """Meanwhile the worker in this process, whose connector is kvtier's, leaves orders to store alone."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    transfers = get_kv_transfer_group()._transfers
    transfers.begin_stores = lambda stores: None
    try:
        yield
    finally:
        del transfers.begin_stores


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    from vllm import SamplingParams

    options = json.loads(sys.argv[1])
    llm = start(options)
    steps = Counted(llm)
    one = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["forget"]:
            forget(llm, one)
        before = steps.so_far()
        sampling = SamplingParams(max_tokens=asked["max_tokens"], temperature=0, ignore_eos=options["random_weights"],
                                  detokenize=not options["random_weights"], logprobs=asked["logprobs"])
        prompts = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in asked["prompts"]]
        with contextlib.nullcontext() if asked["stores"] else without_stores():
            steps.steps.clear()
            began = time.perf_counter()
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            seconds, of_steps = time.perf_counter() - began, list(steps.steps)
        # With asynchronous scheduling what a step counted is told by a later one.
        llm.generate({"prompt_token_ids": [7]}, one, use_tqdm=False)
        after = steps.so_far()
        print(json.dumps({
            "counted": {name: after[name] - before.get(name, 0) for name in after}, "seconds": seconds, "steps": of_steps,
            "answers": [{"prompt_ids": list(out.prompt_token_ids), "ids": list(out.outputs[0].token_ids),
                         "logprobs": [{str(token): p.logprob for token, p in of.items()}
                                      for of in out.outputs[0].logprobs or ()],
                         "text": out.outputs[0].text, "first_token_ms": 1000 * out.metrics.first_token_latency}
                        for out in outputs]}), file=answers, flush=True)


if __name__ == "__main__":
    main()
