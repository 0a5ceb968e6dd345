"""The same methods in other people's training loops: one file for each, imported only by those who have the package.

from replastic.integrations.lightning import PlasticityCallback
from replastic.integrations.transformers import PlasticityCallback
from replastic.integrations.sb3 import PlasticityCallback
"""
