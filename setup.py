"""Builds the protobuf modules of protos/ into eluvix_extproc/wire/pb, on install and on editable install."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PACKAGE = "eluvix_extproc/wire/pb"


def generate() -> None:
    from grpc_tools import protoc

    protos = sorted((ROOT / "protos").glob("*.proto"))
    arguments = [
        "protoc",
        # Files in protos/ import one another by the path of the generated package, so that the generated
        # modules do too; a top-level `envoy` package would clash with other wheels.
        f"-I{PACKAGE}={ROOT / 'protos'}",
        f"-I{Path(protoc.__file__).parent / '_proto'}",
        f"--python_out={ROOT}",
        f"--pyi_out={ROOT}",
        *(f"{PACKAGE}/{proto.name}" for proto in protos),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed on protos/")


class BuildWithProtos(build_py):
    def run(self) -> None:
        generate()
        super().run()


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithProtos})
