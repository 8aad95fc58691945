"""placeholder"""
from tenantq._version import __version__
