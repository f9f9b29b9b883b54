from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = next(
    line.split('"')[1] for line in (here / "src/__init__.py").read_text().splitlines() if line.startswith("__version__")
)
readme = here / "README.md"

setup(
    name="fractal-ssm",
    version=version,
    description="Fractional state space models and a benchmark framework for long sequences",
    long_description=readme.read_text() if readme.exists() else "",
    long_description_content_type="text/markdown",
    author="the fractal_ssm authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # 3.11.4 brought the filter that unpacks archives of strangers safely.
    python_requires=">=3.11.4",
    packages=["fractal_ssm"]
    + ["fractal_ssm." + name for name in find_packages(str(here / "src"))]
    + ["fractal_ssm.configs"],
    package_dir={"fractal_ssm": "src", "fractal_ssm.configs": "configs"},
    package_data={"fractal_ssm": ["py.typed"], "fractal_ssm.configs": ["**/*.yaml"]},
    install_requires=[
        "torch>=2.11",
        "triton>=3.6; platform_system == 'Linux'",
        "numpy>=2.0",
        "filelock>=3.16",
        "scipy>=1.14",
        "python-flint>=0.7",
        "einops>=0.8",
        "numba>=0.61",
        "pykeops>=2.3",
        "hydra-core>=1.3.2,<1.4",
        "lightning>=2.6",
        "matplotlib>=3.9",
        "pillow>=10.4",
        "rich>=13",
        "safetensors>=0.5",
    ],
    extras_require={
        "test": ["pytest>=8", "pytest-xdist>=3.5", "pytest-timeout>=2.3", "hypothesis>=6.100", "mpmath>=1.3"],
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.5",
            "mkdocstrings>=1.0",
            "mkdocstrings-python>=2.0",
            "latex2mathml>=3.77",
        ],
        # Real series that ship in packages; the UCR sets come with `pip install --no-deps sktime`.
        "series": ["arch>=7", "statsmodels>=0.14.4", "heartpy>=1.2.7"],
        "tensorboard": ["tensorboard>=2.18"],
        "wandb": ["wandb>=0.19"],
        "mlflow": ["mlflow-skinny>=3.0"],
        "hf": ["transformers>=5.24", "accelerate>=1.10"],
        "export": ["onnx>=1.20", "onnxscript>=0.7", "onnxruntime>=1.30"],
        "sweep": ["hydra-joblib-launcher>=1.2", "hydra-submitit-launcher>=1.2"],
    },
    entry_points={"console_scripts": ["fractal-train=fractal_ssm.train:main"]},
)
