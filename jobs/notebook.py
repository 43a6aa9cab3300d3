"""Open, train, look, predict, plot: the functions for Python in the order of a notebook.

`# %%` begins a cell, as editors and jupytext read it. The script needs `pip install '.[mpich,xarray]'`. It writes its
data, the run `notebook_run` and the figures `notebook_loss.png` and `notebook_map.png` into the working folder.
"""

# %% Open: any Dataset will do; this one is made up
import subprocess
import sys

import matplotlib.pyplot as plt
import xarray

import mpitrain

subprocess.run([sys.executable, "-m", "mpitrain", "data", "generate", "notebook_history.nc"], check=True)
ds = xarray.open_dataset("notebook_history.nc")

# %% Train: on two ranks of this machine; without `ranks`, in one process
run = mpitrain.train(
    ds,
    inputs=["Tair_h", "Tsfc_h", "sst_h", "sss_h", "hs_h", "hi_h", "sice_h"],
    targets=["aice_h"],
    epochs=10,
    ranks=2,
    output="notebook_run",
    overwrite=True,
)

# %% Look: skill on held-out samples, losses of each epoch; `run.report` shows the whole page
print(run.skill)
print(run.metrics)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(run.metrics["epoch"], run.metrics["train_loss"], label="training")
axes.plot(run.metrics["epoch"], run.metrics["validation_loss"], label="validation")
axes.set(xlabel="epoch", ylabel="mean squared error", yscale="log")
axes.legend()
figure.savefig("notebook_loss.png", dpi=110)

# %% Predict: a Dataset in, a Dataset out, on the same coordinates
predicted = mpitrain.open("notebook_run").predict(ds, jacobian=True)
print(predicted)

# %% Plot: the data, the prediction, and the error at the first time
level = {"time": 0}
fields = {
    "data": ds["aice_h"].isel(level).where(predicted["aice_h"].isel(level).notnull()),
    "prediction": predicted["aice_h"].isel(level),
}
figure, panels = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
for axes, (title, field) in zip(panels, fields.items(), strict=False):
    mesh = axes.pcolormesh(ds["ULON"], ds["ULAT"], field, vmin=0, vmax=1, cmap="Blues_r", shading="nearest")
    figure.colorbar(mesh, ax=axes, label="ice concentration")
    axes.set(title=title, xlabel="longitude", ylabel="latitude")
error = fields["prediction"] - fields["data"]
mesh = panels[2].pcolormesh(ds["ULON"], ds["ULAT"], error, vmin=-0.1, vmax=0.1, cmap="RdBu_r", shading="nearest")
figure.colorbar(mesh, ax=panels[2], label="prediction - data")
panels[2].set(title="error", xlabel="longitude", ylabel="latitude")
for axes in panels:
    axes.set_ylim(40, 90)
figure.savefig("notebook_map.png", dpi=110)
