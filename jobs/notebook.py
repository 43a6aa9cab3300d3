"""Tutorial: open data, train a network, look at the results, predict, plot and export, all from Python.

Install the requirements with `pip install '.[mpich,xarray]' iris-sample-data`; the second package contains yearly
temperatures of North America from 1860 to 2099, computed by a climate model for two scenarios. Run this file as a
script, or cell by cell: `# %%` begins a cell in VS Code, Spyder and PyCharm, and
`pip install jupytext && jupytext --to notebook notebook.py` writes `notebook.ipynb` for Jupyter. The tutorial writes
`notebook_run`, `notebook_loss.png`, `notebook_map.png` and `notebook_emulator.f90` to the working folder.
"""

# %% Open data
# Any xarray Dataset works.
from pathlib import Path

import iris_sample_data
import matplotlib.pyplot as plt
import xarray

import mpitrain

files = Path(iris_sample_data.path)
ds = xarray.open_dataset(files / "A1B_north_america.nc")
print(ds)

# %% Train
# The network predicts this year's temperature from last year's temperature and the position. With `data.split: time`
# whole ranges of years are held out: some for validation, which chooses the epoch, others for a test, which chooses
# nothing. For data with 20 times or more this is also the default.
run = mpitrain.train(
    ds,
    inputs=["air_temperature[time-1]", "latitude", "longitude"],
    targets=["air_temperature"],
    epochs=8,
    ranks=2,  # processes on this machine; without `ranks` this process trains
    output="notebook_run",
    overwrite=True,
    **{"data.split": "time"},  # a setting with a dot in its name; `mpitrain config explain` lists all settings
)

# %% Look at skill and losses
# `run.skill` is on the validation years, `run.test_skill` on the test years: report the second one. r2 is mostly the
# difference between warm and cold places; the printed lines compare the loss with that of last year's value
# (persistence). `run.metrics` has the losses of each epoch, `run.report` shows the whole report.
print(run.skill)
print(run.test_skill)
print(run.metrics)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(run.metrics["epoch"], run.metrics["train_loss"], label="training")
axes.plot(run.metrics["epoch"], run.metrics["validation_loss"], label="validation")
axes.set(xlabel="epoch", ylabel="mean squared error", yscale="log")
axes.legend()
figure.savefig("notebook_loss.png", dpi=110)

# %% Predict
# The network was not trained on this scenario. The prediction is a Dataset with the coordinates of the input Dataset;
# it is NaN in the first year, which has no value of the year before.
other = xarray.open_dataset(files / "E1_north_america.nc")
predicted = mpitrain.open("notebook_run").predict(other)
print(predicted)
error = predicted["air_temperature"] - other["air_temperature"]
persistence = other["air_temperature"].diff("time")
print("RMSE in K:", float((error**2).mean() ** 0.5), "and of last year's value:", float((persistence**2).mean() ** 0.5))

# %% Plot
# The last year: the data, the prediction and its error.
last = {"time": -1}
figure, panels = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
other["air_temperature"].isel(last).plot(ax=panels[0], vmin=250, vmax=305)
predicted["air_temperature"].isel(last).plot(ax=panels[1], vmin=250, vmax=305)
error.isel(last).plot(ax=panels[2], vmin=-3, vmax=3, cmap="RdBu_r", cbar_kwargs={"label": "K"})
for axes, title in zip(panels, ("data", "prediction", "prediction - data"), strict=True):
    axes.set(title=title, xlabel="longitude", ylabel="latitude")
figure.savefig("notebook_map.png", dpi=110)

# %% Export
# The result is Fortran source code without dependencies, to be compiled into a model.
mpitrain.open("notebook_run").export("notebook_emulator.f90")
