"""One vLLM engine in a process of its own, for scripts/vllm_demo.py and tests/vllm/engine_test.py.

Run as a program it answers the prompts that it reads, a JSON object a line, until there are no more. It reads
{"prompts": [text, or token ids], "max_tokens": n, "forget": whether its own prefix cache is emptied before}; it answers
with what vLLM counted meanwhile, and of each prompt with its tokens, the answer's, and the time to the first of them.
"""
import json
import os
import subprocess
import sys
import time

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
COUNTED = {
    "vllm:external_prefix_cache_hits": "external",
    "vllm:prefix_cache_hits": "own",
    "vllm:num_preemptions": "preemptions",
    "vllm:kvtier_blocks_loaded": "loaded",
    "vllm:kvtier_blocks_from_disk": "from_disk",
    "vllm:kvtier_blocks_failed": "failed",
    "vllm:kvtier_blocks_stored": "stored",
    "vllm:kvtier_blocks_dropped": "dropped",
    "vllm:kvtier_faults": "faults",
}


class Engine:
    """The process. What vLLM prints goes to `log`."""

    def __init__(self, log, model, socket=None, connector=None, **engine):
        """`socket`: of kvtierd; None: without the connector. `connector`: its options. `engine`: vLLM's arguments."""
        options = {"model": str(model), "socket": str(socket) if socket else None, "connector": connector or {},
                   "engine": engine}
        self.process = subprocess.Popen([sys.executable, __file__, json.dumps(options)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, text=True,
                                        env={**ENVIRONMENT, **os.environ})
        self.answer()

    def begin(self, prompts, forget=False, max_tokens=16):
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens, "forget": forget}) + "\n")
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


def start(options):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    transfer = None
    if options["socket"]:
        transfer = KVTransferConfig(
            kv_connector="KvtierConnector", kv_connector_module_path="kvtier.vllm", kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"kvtier.socket": options["socket"], **options["connector"]})
    return LLM(model=options["model"], enforce_eager=True, seed=0, kv_transfer_config=transfer, disable_log_stats=False,
               **options["engine"])


def counted(llm):
    """vLLM's own counters so far."""
    return {COUNTED[metric.name]: metric.value for metric in llm.get_metrics() if metric.name in COUNTED}


def forget(llm, sampling):
    """Empties its own prefix cache, for which no block may be in use: stores are seen to have ended in steps."""
    until = time.monotonic() + 60
    while not llm.reset_prefix_cache():
        if time.monotonic() > until:
            raise TimeoutError("vLLM's prefix cache stays in use")
        llm.generate("x", sampling(max_tokens=1, temperature=0), use_tqdm=False)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    from vllm import SamplingParams

    llm = start(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["forget"]:
            forget(llm, SamplingParams)
        before = counted(llm)
        sampling = SamplingParams(max_tokens=asked["max_tokens"], temperature=0)
        prompts = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in asked["prompts"]]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        after = counted(llm)
        print(json.dumps({
            "counted": {name: after[name] - before.get(name, 0) for name in after},
            "answers": [{"prompt_ids": list(out.prompt_token_ids), "ids": list(out.outputs[0].token_ids),
                         "text": out.outputs[0].text, "first_token_ms": 1000 * out.metrics.first_token_latency}
                        for out in outputs]}), file=answers, flush=True)


if __name__ == "__main__":
    main()
