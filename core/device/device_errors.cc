#include "core/device/device_errors.h"

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd {

absl::Status NoMemory(absl::string_view what, size_t bytes, size_t budget_bytes,
                      size_t used_bytes) {
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                        what, " has no room for ", bytes, " bytes more: the budget is ",
                        budget_bytes, " bytes, of which ", used_bytes, " are in use")),
                    "drop values there, or raise the budget");
}

absl::Status DeviceLost(absl::string_view name, absl::string_view reason) {
  return WithRemedy(absl::UnavailableError(absl::StrCat(name, " is lost: ", reason)),
                    "load its values from a save on another device, and restart the worker");
}

absl::Status DeviceEnds(absl::string_view name) {
  return WithRemedy(absl::UnavailableError(absl::StrCat(
                        name, " allocates nothing more, because its last user has dropped it")),
                    "keep the device until its work is done");
}

absl::Status NoMoreStreams(absl::string_view name) {
  return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                        name, " has ", kMaxStreams, " streams already, which is the most")),
                    "use one of its streams for more work");
}

absl::Status NotInMemory(absl::string_view operation, absl::string_view stream,
                         absl::string_view device, size_t bytes) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(operation, " on ", stream, " was given ", bytes,
                                              " bytes that are not in the memory of ", device)),
      "copy them to a block of this device first");
}

absl::Status NotPinned(absl::string_view operation, absl::string_view stream,
                       absl::string_view device, size_t bytes) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(
          operation, " on ", stream, " was given ", bytes,
          " bytes of the host that are not in one block of the pinned memory of ", device)),
      "allocate them from pinned_memory() of the device");
}

absl::Status UnknownBlock(absl::string_view device, const Block& block) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat("a stream of ", device, " cannot use a block of ",
                                              DeviceName(block.place().device()))),
      "copy it with CopyFrom");
}

absl::Status NotToBeExported(absl::string_view device) {
  return WithRemedy(absl::UnimplementedError(absl::StrCat(
                        device, " does not pass on a block that another process has allocated")),
                    "let that process export it, or copy it to a block of this device first");
}

absl::Status OtherKindOfEvent(absl::string_view stream) {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        stream, " cannot wait for an event of another kind of device")),
                    "wait for it on the host");
}

absl::Status NoDirectCopy(absl::string_view stream, const Device& from) {
  return WithRemedy(absl::UnimplementedError(absl::StrCat(stream, " cannot copy from ", from.name(),
                                                          ", which is another kind of device")),
                    "copy through the host");
}

}  // namespace psd
