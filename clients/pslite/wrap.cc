// SPDX-License-Identifier: Apache-2.0
// For programs with a static library of ps-lite: the linker's --wrap sends calls of Van::Create
// here.
#include <string>

#include "create.h"

#define CREATE(prefix) prefix##_ZN2ps3Van6CreateERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE

extern "C" {
ps::Van* CREATE(__real_)(const std::string& type);
ps::Van* CREATE(__wrap_)(const std::string& type);

ps::Van* CREATE(__wrap_)(const std::string& type) { return libra_van_create(type, CREATE(__real_)); }
}
