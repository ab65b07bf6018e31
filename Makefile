# Commands of this project; `make help` lists them.
#
# Each command first creates its virtual environment with the newest Python of 3.10 to 3.14. To choose the Python:
# make test PYTHON=/path/to/python3.10. To pass arguments to the command: make test ARGS="--seed 7".

.PHONY: help install demo compare test test-all test-faults test-mxnet2 test-oldest test-cu112 test-debian test-arm64 \
        test-wheel test-processors test-onnxruntime gpu-report horovod test-horovod test-hosts lint lint-oldest audit \
        docs clean mutants class

help:
	@echo 'make install      create .venv and install everything into it (2 minutes)'
	@echo 'make class        prepare a laptop: environment, checks, data, one epoch'
	@echo 'make demo         train LeNet on two devices, plot the accuracy (2 minutes)'
	@echo 'make compare      the demo on one device and on two, in one picture'
	@echo 'make test         quick tests; on GPUs: ARGS="--devices gpu:0,gpu:1"'
	@echo 'make test-all     all tests (several minutes)'
	@echo 'make test-faults  kill runs, corrupt files, fill disks (10 minutes)'
	@echo 'make test-mxnet2  all tests on MXNet 2 (needs 13 GB of memory)'
	@echo 'make test-oldest  all tests with the lowest versions in pyproject.toml'
	@echo 'make test-cu112   all tests, CUDA build on CPU contexts (some GB)'
	@echo 'make test-debian  the commands of README.md in a minimal Debian'
	@echo 'make test-arm64   some tests in an emulated ARM64 Debian (7 minutes)'
	@echo 'make test-wheel   install the wheel in an empty environment, train'
	@echo 'make test-processors quick tests, instructions of old processors'
	@echo 'make test-onnxruntime exported models in old and new onnxruntime'
	@echo 'make gpu-report   on GPUs: the commands of tools/gpu_report.txt'
	@echo 'make horovod      build Horovod into .venv, for several machines'
	@echo 'make test-horovod tests that need Horovod'
	@echo 'make test-hosts   jobs on two simulated hosts; needs root, SSH server'
	@echo 'make mutants      plant faults, print those that no test notices (1 hour)'
	@echo 'make lint         check the code with Ruff and mypy'
	@echo 'make lint-oldest  the same with the lowest versions of NumPy and mypy'
	@echo 'make audit        look for known vulnerabilities in installed packages'
	@echo 'make docs         build the documentation in site/'
	@echo 'make clean        delete the environments and caches of these commands'

install: .venv/installed
	@echo 'Installed. To use it: source .venv/bin/activate'

demo: .venv/installed
	.venv/bin/python -m gluon_mgpu.scratch --num-gpus 2 $(ARGS)

# The epoch downloads Fashion-MNIST first
class: .venv/installed
	.venv/bin/python -m gluon_mgpu doctor
	.venv/bin/python -m gluon_mgpu.scratch --num-epochs 1 $(ARGS)

# Draws README's picture with OUT=docs/accuracy.png
compare: RUNS := runs/compare-$(shell date +%Y%m%d-%H%M%S)
compare: OUT = $(RUNS)/accuracy.png
compare: .venv/installed
	.venv/bin/python -m gluon_mgpu.scratch --num-gpus 1 --out-dir $(RUNS)/one $(ARGS)
	.venv/bin/python -m gluon_mgpu.scratch --num-gpus 2 --out-dir $(RUNS)/two $(ARGS)
	.venv/bin/python -m gluon_mgpu plot $(RUNS)/one $(RUNS)/two --out $(OUT)

# Two processes, each with whole files
test: .venv/installed
	.venv/bin/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

test-all: .venv/installed
	.venv/bin/python -m pytest --all $(ARGS)

# oneDNN and OpenBLAS of MXNet use other kernels, with other rounding, on other processors. The third set is this machine's.
# NumPy's OpenBLAS reads the same variable; its kernels for Prescott, older than Nehalem, crash in NumPy 2.5
test-processors: .venv/installed
	DNNL_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem .venv/bin/python -m pytest $(ARGS)
	DNNL_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell .venv/bin/python -m pytest $(ARGS)
	.venv/bin/python -m pytest $(ARGS)

test-faults: .venv/installed
	.venv/bin/python -m pytest tests/faults --all --long $(ARGS)

test-mxnet2: .venv-mxnet2/installed
	.venv-mxnet2/bin/python -m pytest --all $(ARGS)

test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest --all $(ARGS)

test-cu112: .venv-cu112/installed
	@tools/with_driver.sh .venv-cu112/bin/python -m pytest --all $(ARGS)

# ARGS are options of mmdebstrap, such as --aptopt='Acquire::http::Proxy "http://proxy:3128"'
# Needs mmdebstrap and debian-archive-keyring
test-debian:
	@tools/test_debian.sh $(ARGS)

# As for test-debian; also needs qemu-user-static, and downloads a few hundred MB
test-arm64:
	@tools/test_arm64.sh $(ARGS)

# ARGS may name a new folder, which gets the source archive and the wheel
test-wheel: .venv/installed
	@tools/test_wheel.sh .venv $(ARGS)

# Needs Python 3.11, for wheels of the oldest onnxruntime
test-onnxruntime: .venv/installed
	@tools/test_onnxruntime.sh .venv $(ARGS)

# --check fails without a GPU, before some GB are installed
gpu-report:
	@$(or $(PYTHON),python3) tools/gpu_report.py --check
	@$(MAKE) --no-print-directory .venv-cu112/installed
	@.venv-cu112/bin/python tools/gpu_report.py $(ARGS)

horovod: .venv/installed
	@tools/install_horovod.sh .venv

test-horovod: horovod
	.venv/bin/python -m pytest tests/distributed --all $(ARGS)

test-hosts: horovod
	.venv/bin/python -m pytest tests/distributed/hosts --all $(ARGS)

# ARGS="--modules gluon_mgpu/data --sample 20 --seed 1": more faults, other faults
mutants: .venv/installed
	.venv/bin/python tools/mutants.py $(ARGS)

# pyproject.toml says what is checked
lint: .venv/installed
	.venv/bin/python -m ruff check $(ARGS)
	.venv/bin/python -m mypy

lint-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m mypy

audit: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7'
	.venv/bin/python -m pip_audit --skip-editable $(ARGS)

# --strict makes a warning an error. --quiet would hide warnings from --strict. The variable silences an announcement of
# Material for MkDocs.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo 'Open site/index.html. To use the search: python3 -m http.server --directory site'

.venv/installed: EXTRAS = cpu,test
.venv-mxnet2/installed: EXTRAS = mxnet2,test
.venv-oldest/installed: EXTRAS = cpu,test oldest
.venv-cu112/installed: EXTRAS = cu112,test
.venv-docs/installed: EXTRAS = docs
INSTALLED = .venv/installed .venv-mxnet2/installed .venv-oldest/installed .venv-cu112/installed .venv-docs/installed
$(INSTALLED): pyproject.toml
	@tools/make_venv.sh $(@D) $(EXTRAS)
ifdef PYTHON  # always call the script, which compares it with the Python of an environment that exists
.PHONY: $(INSTALLED)
endif

clean:
	rm -rf .venv .venv-mxnet2 .venv-oldest .venv-cu112 .venv-compare .venv-docs .venv-onnxruntime site .pytest_cache \
	       .ruff_cache .mypy_cache .hypothesis
	find gluon_mgpu tests examples benchmarks tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
