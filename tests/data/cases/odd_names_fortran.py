"""Write odd.nc and run.yaml: names and units that NetCDF allows and programs stumble over."""

import numpy as np
from netCDF4 import Dataset

# Two names of the CF standard name table that are the same for their first hundred letters.
LONG = "tendency_of_atmosphere_mass_content_of_secondary_particulate_organic_matter_dry_aerosol_particles_due_to_"
INPUTS = (
    ("Temperature (°C)", "°C"),
    ("Temperature_C", "degC"),  # the sensor before it was calibrated
    (LONG + "net_chemical_production", "µmol m-2 s-1"),
    (LONG + "dry_deposition", "µmol m-2 s-1"),
    ("wind speed", "10' m s-1"),
)
TARGET = ("Salinity [g kg⁻¹]", "g kg⁻¹")
shape = (5, 8, 12)

random = np.random.default_rng(0)
values = [random.normal(size=shape) for _ in INPUTS]
target = sum((count + 1) * one for count, one in enumerate(values))

with Dataset("odd.nc", "w") as file:
    for name, size in zip(("time", "lat", "lon"), shape, strict=True):
        file.createDimension(name, size)
        file.createVariable(name, "f8", (name,)).units = {
            "time": "days since 2000-01-01", "lat": "degrees_north", "lon": "degrees_east"
        }[name]  # fmt: skip
        file[name][:] = np.arange(size)
    for (name, units), one in zip((*INPUTS, TARGET), (*values, target), strict=True):
        variable = file.createVariable(name, "f4", ("time", "lat", "lon"))
        variable.units = units
        variable[:] = one

with open("run.yaml", "w", encoding="utf-8") as file:
    file.write("data: {data_path: odd.nc}\nvariables:\n  input_variables:\n")
    file.writelines(f'  - "{name}"\n' for name, _ in INPUTS)
    file.write(f'  output_variables: ["{TARGET[0]}"]\n')
    file.write("model: {name: mlp, hidden_layers: 1, hidden_size: 8}\ntraining: {epochs: 2, global_batch_size: 32}\n")
