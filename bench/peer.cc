#include "bench/peer.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr absl::Duration kTimeout = absl::Seconds(180);

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(const std::string& script,
                                                  const std::string& transport) {
  auto process = Process::Start({kPython, "-B", script, "--serve", "--transport", transport});
  if (!process.ok()) return process.status();
  std::unique_ptr<Peer> peer(new Peer(*std::move(process)));
  const auto ready = peer->process_->ReadLine(kTimeout);
  absl::string_view description = ready.ok() ? absl::string_view(*ready) : "";
  if (!absl::ConsumePrefix(&description, "ready ")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer, PyTorch RPC, does not start (",
        ready.ok() ? *ready : std::string(ready.status().message()),
        "); it needs: apt-get install -y --no-install-recommends python3-torch python3-numpy"));
  }
  peer->description_ = std::string(description);
  peer->process_->Pause();
  return peer;
}

absl::StatusOr<std::string> Peer::Ask(const std::string& request) {
  process_->Resume();
  PSD_RETURN_IF_ERROR(process_->WriteLine(request));
  PSD_ASSIGN_OR_RETURN(const std::string answer, process_->ReadLine(kTimeout));
  process_->Pause();
  absl::string_view result = answer;
  if (!absl::ConsumePrefix(&result, "ok")) {
    return absl::InternalError(absl::StrCat("peer, at '", request, "': ", answer));
  }
  return std::string(result);
}

absl::Status Peer::StartCase(const std::string& name) {
  return Ask("start " + name).status();
}

absl::StatusOr<double> Peer::RunBlock(const std::string& name) {
  PSD_ASSIGN_OR_RETURN(const std::string answer, Ask("block " + name));
  double seconds = 0;
  if (!absl::SimpleAtod(answer, &seconds) || seconds <= 0) {
    return absl::InternalError(absl::StrCat("peer gave no time: ", answer));
  }
  return seconds;
}

absl::Status Peer::StopCase(const std::string& name) {
  return Ask("stop " + name).status();
}

}  // namespace psd::bench
