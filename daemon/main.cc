#include "daemon/run_kvtierd.h"

int main(int argc, char** argv) {
  return kvtier::daemon::run_kvtierd(argc, argv);
}
