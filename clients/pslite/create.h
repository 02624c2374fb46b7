// SPDX-License-Identifier: Apache-2.0
// How ps-lite gets Libra's van.
#ifndef CREATE_H
#define CREATE_H

#include <string>

#include "ps/internal/van.h"

// libra_van_create returns the van for DMLC_PS_VAN_TYPE=libra; `other` has ps-lite's own vans.
ps::Van* libra_van_create(const std::string& type, ps::Van* (*other)(const std::string&));

#endif
