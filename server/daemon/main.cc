// psd: a daemon that owns parameters.

#include "server/daemon/daemon.h"

int main(int argc, char** argv) {
  return psd::server::RunDaemon(argc, argv, {});
}
