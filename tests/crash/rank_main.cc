// A rank of a group that tests kill and stop: rank_main NAME OWNER=ADDRESS MEMBER[,MEMBER…]
//
// Joins a group with these members and prints "joined SIZE". Then it all-reduces for ever, and
// prints "done N" after call N. If a call fails, it prints "error CODE WORKER", where WORKER is the
// one that the error names, builds the group again without that worker and goes on; it ends if it
// is that worker itself.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "tests/crash/rank_lines.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int64_t kElements = 200'000;

absl::Status Reduce(Group& group, int* calls) {
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Full({kElements}, DType::kF32, 1));
    PSD_ASSIGN_OR_RETURN(const Tensor sum, group.AllReduce(ones));
    if (sum.data<float>()[kElements - 1] != static_cast<float>(group.size()))
      return absl::DataLossError("a wrong sum");
    Say(absl::StrCat("done ", ++*calls));
  }
}

absl::Status Run(const std::string& name, const std::string& owner, const std::string& members) {
  const std::vector<std::string> parts = absl::StrSplit(owner, absl::MaxSplits('=', 1));
  WorkerOptions options = TrainerOptions(name, {{parts[0], parts[1]}});
  options.listen = "127.0.0.1:0";
  options.session.lease = absl::Hours(1);  // a rank that is stopped comes back within it
  PSD_ASSIGN_OR_RETURN(auto worker, Worker::Start(std::move(options)));
  GroupOptions join;
  join.members = absl::StrSplit(members, ',');
  join.timeout = absl::Seconds(3);
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, Group::Join(*worker, "ranks", join));
  for (int calls = 0;;) {
    Say(absl::StrCat("joined ", group->size()));
    const std::string lost = SayError(Reduce(*group, &calls));
    if (lost == name) return absl::OkStatus();
    PSD_ASSIGN_OR_RETURN(group, group->Rebuild(*worker, {lost}));
  }
}

}  // namespace
}  // namespace psd::crash

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status = psd::crash::Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) psd::crash::SayError(status);
  return status.ok() ? 0 : 1;
}
