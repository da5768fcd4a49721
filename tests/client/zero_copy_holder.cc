// A trainer for zero_copy_test that pulls the parameter "w" of owner0 and never lets go of it:
//
//   zero_copy_holder ADDRESS
//
// Writes 'h' once it holds the parameter. For each byte that it reads it then writes 'y' if all
// elements are still those that it pulled, 'n' if not.

#include <unistd.h>

#include <memory>
#include <string>

#include "client/psd.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace psd {
namespace {

absl::Status Hold(const std::string& address) {
  WorkerOptions options;
  options.name = "holder";
  options.owners = {{"owner0", address}};
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(options));
  PSD_ASSIGN_OR_RETURN(const RRef w, worker->Lookup("owner0", "w"));
  PSD_ASSIGN_OR_RETURN(const Values values, worker->ToHere({w}));
  const Buffer held = values[0].As<Variable>()->tensor().AsBuffer();
  const std::string pulled(held.view());
  char said = 'h';
  for (char asked = 0;;) {
    if (write(STDOUT_FILENO, &said, 1) != 1 || read(STDIN_FILENO, &asked, 1) != 1) break;
    said = held.view() == pulled ? 'y' : 'n';
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace psd

int main(int, char** arguments) {
  return psd::Hold(arguments[1]).ok() ? 0 : 1;
}
