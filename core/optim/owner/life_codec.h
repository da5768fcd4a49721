#pragma once

// Converts the life of an optimizer to fields of messages and back. Pure.

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/optim/owner/optimizer_life.h"

namespace psd::optim {

// The most owners of a life in a message. Bounds the memory that a peer can make this worker use.
inline constexpr int kMaxLifeOwners = 4096;

// For any message with a life's id.
template <typename Message>
void EncodeLifeId(GlobalId life, Message& message) {
  message.set_life_incarnation(life.incarnation);
  message.set_life_counter(life.counter);
}
template <typename Message>
GlobalId DecodeLifeId(const Message& message) {
  return {message.life_incarnation(), message.life_counter()};
}

// For any message with a life and its owners.
template <typename Message>
void EncodeLife(const optim::OptimizerLife& life, Message& message) {
  EncodeLifeId(life.id, message);
  for (const optim::LifeOwner& owner : life.owners) {
    message.add_life_owners(owner.name);
    message.add_life_owner_incarnations(owner.incarnation);
  }
}
// Errors: INVALID_ARGUMENT for too many owners, an owner that is named twice or has an invalid
// name, or different numbers of names and incarnations.
template <typename Message>
absl::StatusOr<optim::OptimizerLife> DecodeLife(const Message& message) {
  optim::OptimizerLife life;
  life.id = DecodeLifeId(message);
  if (message.life_owners_size() != message.life_owner_incarnations_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a life with ", message.life_owners_size(), " owners and ",
                     message.life_owner_incarnations_size(), " incarnations of them"));
  }
  if (message.life_owners_size() > kMaxLifeOwners) {
    return absl::InvalidArgumentError(absl::StrCat("a life with ", message.life_owners_size(),
                                                   " owners; ", kMaxLifeOwners, " are allowed"));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (int i = 0; i < message.life_owners_size(); ++i) {
    const std::string& name = message.life_owners(i);
    PSD_RETURN_IF_ERROR(Annotate(CheckWorkerName(name), "an owner of a life"));
    if (!names.insert(name).second)
      return absl::InvalidArgumentError(absl::StrCat("a life with two owners called ", name));
    life.owners.push_back({name, message.life_owner_incarnations(i)});
  }
  return life;
}

// Checks that `life`, which a peer has given to a part on the owner `here`, contains this owner.
inline absl::Status CheckLifeHere(const optim::OptimizerLife& life, const optim::LifeOwner& here) {
  for (const optim::LifeOwner& owner : life.owners)
    if (owner.name == here.name && owner.incarnation == here.incarnation) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a life whose owners do not include this one, ",
                                                 here.name, " (incarnation ",
                                                 IncarnationToString(here.incarnation), ")"));
}

// Returns the life of a part from its owner's report.
template <typename Message>
void EncodeReportedLife(const optim::OptimizerLife& life, Message& message) {
  EncodeLife(life, message);
  message.set_life_loading(life.stage == optim::LifeStage::kLoading);
}
template <typename Message>
absl::StatusOr<optim::OptimizerLife> DecodeReportedLife(const Message& message) {
  PSD_ASSIGN_OR_RETURN(optim::OptimizerLife life, DecodeLife(message));
  if (message.life_loading()) life.stage = optim::LifeStage::kLoading;
  return life;
}

}  // namespace psd::optim
