"""A stand-in for bench/peer/torch_rpc_bench.py without PyTorch. Blocks take 2, 4, 6, … seconds."""
import sys

print("ready fake %s" % sys.argv[-1], flush=True)
seconds = 0
for line in sys.stdin:
    verb, case = line.split()
    if case == "broken":
        print("error it broke", flush=True)
    elif verb == "block":
        seconds += 2
        print("ok %d" % seconds, flush=True)
    else:
        print("ok", flush=True)
