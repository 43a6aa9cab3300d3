"""Open, look, train, predict, plot, export: the functions for Python in the order of a notebook.

`# %%` begins a cell, as editors and jupytext read it. `pip install '.[mpich,xarray]' iris-sample-data` installs what it
needs: the latter holds yearly temperatures of North America from 1860 to 2099 in a climate model, by two scenarios. It
writes `notebook_run`, `notebook_loss.png`, `notebook_map.png` and `notebook_emulator.f90` into the working folder.
"""

# %% Open: any Dataset will do
from pathlib import Path

import iris_sample_data
import matplotlib.pyplot as plt
import xarray

import mpitrain

files = Path(iris_sample_data.path)
ds = xarray.open_dataset(files / "A1B_north_america.nc")
print(ds)

# %% Train: this year's temperature from last year's and the place; the years that are held out are whole blocks of time
run = mpitrain.train(
    ds,
    inputs=["air_temperature[time-1]", "latitude", "longitude"],
    targets=["air_temperature"],
    epochs=8,
    ranks=2,  # processes of this machine; without `ranks` this one trains
    output="notebook_run",
    overwrite=True,
    **{"data.split": "time"},
)

# %% Look: skill on held-out years, losses of each epoch; `run.report` shows the whole page
print(run.skill)
print(run.metrics)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(run.metrics["epoch"], run.metrics["train_loss"], label="training")
axes.plot(run.metrics["epoch"], run.metrics["validation_loss"], label="validation")
axes.set(xlabel="epoch", ylabel="mean squared error", yscale="log")
axes.legend()
figure.savefig("notebook_loss.png", dpi=110)

# %% Predict: the other scenario, which the network has not seen; a Dataset in, a Dataset out, on the same coordinates
other = xarray.open_dataset(files / "E1_north_america.nc")
predicted = mpitrain.open("notebook_run").predict(other)
print(predicted)
error = predicted["air_temperature"] - other["air_temperature"]
persistence = other["air_temperature"].diff("time")
print("RMSE in K:", float((error**2).mean() ** 0.5), "and of last year's value:", float((persistence**2).mean() ** 0.5))

# %% Plot: the data, the prediction, and the error in the last year
last = {"time": -1}
figure, panels = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
other["air_temperature"].isel(last).plot(ax=panels[0], vmin=250, vmax=305)
predicted["air_temperature"].isel(last).plot(ax=panels[1], vmin=250, vmax=305)
error.isel(last).plot(ax=panels[2], vmin=-3, vmax=3, cmap="RdBu_r", cbar_kwargs={"label": "K"})
for axes, title in zip(panels, ("data", "prediction", "prediction - data"), strict=True):
    axes.set(title=title, xlabel="longitude", ylabel="latitude")
figure.savefig("notebook_map.png", dpi=110)

# %% Export: source code without dependencies, for a Fortran model
mpitrain.open("notebook_run").export("notebook_emulator.f90")
