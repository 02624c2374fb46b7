# SPDX-License-Identifier: Apache-2.0
"""The release of Libra that this package belongs to."""

VERSION = "0.1.0"
