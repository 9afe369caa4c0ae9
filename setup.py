"""Packaging: maps the folders of the checkout into the ``slicebeam`` namespace."""

from setuptools import find_packages, setup

FOLDERS = ("metrics", "transforms", "pipelines", "runner_configs")

packages = ["slicebeam"] + [
    name
    for folder in FOLDERS
    for name in (
        f"slicebeam.{folder}",
        *(f"slicebeam.{folder}.{sub}" for sub in find_packages(folder)),
    )
]

setup(
    packages=packages,
    # What `import slicebeam` loads, and nothing else, lies beside the links to the folders.
    package_dir={
        "slicebeam": ".typing/slicebeam",
        **{f"slicebeam.{folder}": folder for folder in FOLDERS},
    },
    package_data={
        **{name: ["py.typed"] for name in packages},
        "slicebeam.pipelines": ["py.typed", "demo_data/*"],
        "slicebeam.pipelines.adaptive.proposers": ["py.typed", "lexicons.*", "*.yaml"],
        "slicebeam.pipelines.page": ["py.typed", "bundle/*"],
        "slicebeam.runner_configs": ["py.typed", "*.yaml"],
    },
)
