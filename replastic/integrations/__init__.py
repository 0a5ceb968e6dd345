"""Methods in the training loops of other libraries: one file per library, which needs the library to be installed.

from replastic.integrations.lightning import PlasticityCallback
from replastic.integrations.transformers import PlasticityCallback
from replastic.integrations.sb3 import PlasticityCallback
"""
