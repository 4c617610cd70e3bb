// Every key of the configuration's file: how its value is read, and how it is shown. Only what
// reads and writes the file includes it. (Tenants, which are a list of tables, are in
// config_tenants.cc.)
#pragma once

#include <functional>
#include <map>
#include <string>

#include "daemon/config/config_values.h"

namespace kvtier::daemon {

// Section (empty: top level), then key.
using Settings = std::map<std::string, std::map<std::string, Setting>>;

// The same for the whole process.
const Settings& settings();

}  // namespace kvtier::daemon
