"""Small programs that show how they are run: what they see of themselves, and how they end."""

PROBES = {
    "arguments": "import sys; print(sys.argv)",
    "name and file": "import os; print(__name__, os.path.basename(__file__), __spec__, __package__, __doc__)",
    "loader": "print(type(__loader__).__name__, __cached__, __annotations__)",
    "variables": "print(sorted(globals()))",
    "path": "import sys, os; print(os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)))",
    "import beside the script": "import beside; print(beside.VALUE)",
    "main module": "import sys; VALUE = 7; main = sys.modules['__main__']\nprint(main.VALUE, vars(main) is globals())",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)",
    "source": "import inspect\ndef add(): pass\nprint(inspect.getsource(add))",
    "annotations": "def f(x: int): pass\nprint(f.__annotations__)",
    "exit status": "import sys; sys.exit(7)",
    "exit text": "import sys; sys.exit('no data')",
    "exit none": "import sys; sys.exit()",
    "exit at exit": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "immediate exit": "import os; print('x', flush=True); os._exit(5)",
    "exception": "def f():\n    raise ValueError('wrong')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('next') from e",
    "syntax error": "print('never')\nx = = 1",
    "exception hook": "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__)\n1 / 0",
    "interrupt": "raise KeyboardInterrupt",
    "own signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "own interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "output order": "import sys\nfor i in range(3):\n    print(i, flush=True); print(i, file=sys.stderr, flush=True)",
    "standard input": "import sys; print(sys.stdin.read()[:4])",
    "thread": "import threading, time\ndef late(): time.sleep(0.2); print('late')\n"
    "threading.Thread(target=late).start()\nprint('main')",
    "encoding": "# -*- coding: latin-1 -*-\nprint('\u00e9'.encode('utf-8'))",
    "spawned process": "import multiprocessing as mp\ndef work(x): return x + 1\nif __name__ == '__main__':\n"
    "    with mp.get_context('spawn').Pool(1) as pool: print(pool.map(work, [1, 2]))",
    "forked process": "import os\npid = os.fork()\n"
    "if pid: os.waitpid(pid, 0); print('parent')\nelse: print('child', flush=True)",
    "current folder": "import os; print(os.getcwd())",
    "environment": "import os; print(sorted(k for k in os.environ if 'GPULAB' not in k and k != '_'))",
    "no future imports": "import __future__; code = compile('1', '', 'eval'); print(code.co_flags & 0x1000000)",
    "stack": "import sys; print(sys._getframe().f_code.co_filename == __file__, sys._getframe().f_code.co_name)",
    "output closed": "import sys; print('before'); sys.stdout.close()",
    "no modules": "import sys; print([name for name in ('numpy', 'torch', 'pandas', 'psutil') if name in sys.modules])",
    "search for torch": "from importlib.util import find_spec\nfor _ in range(2):\n"
    "    spec = find_spec('torch'); print(spec.name, spec.origin, list(spec.submodule_search_locations))",
}  # fmt: skip
