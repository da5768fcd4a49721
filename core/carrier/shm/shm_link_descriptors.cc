// The part of ShmLink that passes descriptors for the user of the carrier.

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/carrier/shm/shm_link.h"

namespace psd::carrier {

std::shared_ptr<HostProcess> ShmLink::FindProcess() {
  const std::shared_ptr<DescriptorUser>& user = core_->options().descriptors;
  if (user == nullptr) return nullptr;
  absl::StatusOr<std::shared_ptr<HostProcess>> process =
      core_->processes().ProcessOf(socket_.get(), poller_);
  if (process.ok()) return *std::move(process);
  user->OnNotPassed(address_, process.status());
  return nullptr;
}

void ShmLink::PassDescriptors() {
  const std::shared_ptr<HostProcess> process = FindProcess();
  if (process == nullptr) return;
  DescriptorUser& user = *core_->options().descriptors;
  for (const NamedDescriptor& each : user.ForPeer(process)) {
    const int error = SendPacket(socket_.get(), PacketKind::kDescriptor, each.name, each.fd->get());
    if (error == 0) continue;
    user.OnNotPassed(process->name(), absl::UnavailableError(absl::StrCat(
                                          "the system passes no descriptor to ", process->name(),
                                          ": ", std::strerror(error))));
  }
}

absl::Status ShmLink::OnDescriptor(Packet packet) {
  if (++passed_here_ > kMostPassedDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMostPassedDescriptors, " descriptors"));
  }
  const std::shared_ptr<HostProcess> process = FindProcess();
  if (process == nullptr) return absl::OkStatus();
  DescriptorUser& user = *core_->options().descriptors;
  if (!packet.fd.valid()) {
    user.OnNotPassed(process->name(),
                     SystemRefusal(absl::StrCat("a descriptor from ", process->name()), EMFILE));
    return absl::OkStatus();
  }
  return user.OnPassed(process, packet.body, std::move(packet.fd));
}

}  // namespace psd::carrier
