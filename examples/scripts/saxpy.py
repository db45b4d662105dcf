"""Runs `y = a * x + y` from Python: the command `vyre`, with data in files."""

import json
import subprocess
import tempfile
from array import array
from pathlib import Path

KERNEL = Path(__file__).resolve().parents[1] / "kernels" / "saxpy.vyre"


def saxpy(a, x, y):
    """Returns the result and the JSON report of the run. `x` and `y` are arrays of f32."""
    with tempfile.TemporaryDirectory() as folder:
        # With NumPy: `numpy.save(folder / "x.npy", x)`, bind `x=@…/x.npy`, and `numpy.load` the result.
        files = {"x": Path(folder, "x.bin"), "y": Path(folder, "y.bin")}
        files["x"].write_bytes(x)
        files["y"].write_bytes(y)
        command = ["vyre", "run", KERNEL, f"a={a}", f"x=@{files['x']}", f"y=@{files['y']}"]
        command += ["--elements", str(len(y)), "--out", f"y=@{files['y']}", "--json"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            error = json.loads(run.stderr)["errors"][0]
            raise RuntimeError(f"{error['code']}: {error['message']} (help: {error['help']})")
        result = array("f")
        result.frombytes(files["y"].read_bytes())
        return result, json.loads(run.stdout)


if __name__ == "__main__":
    result, report = saxpy(2.0, array("f", [1, 2, 3]), array("f", [10, 20, 30]))
    assert list(result) == [12, 24, 36]
    print(f"{list(result)} on {report['device']}, {report['milliseconds']:.3f} ms")
