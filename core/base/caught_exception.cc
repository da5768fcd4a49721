#include "core/base/caught_exception.h"

#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace psd {
namespace {

constexpr size_t kMaxText = 1000;

// Returns for example "std::runtime_error".
std::string TypeName(const std::type_info& type) {
  int failed = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed), std::free);
  return name != nullptr ? name.get() : type.name();
}

}  // namespace

absl::Status CaughtException() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  const std::string threw = absl::StrCat("threw ", type == nullptr ? "something" : TypeName(*type));
  try {
    throw;
  } catch (const std::exception& exception) {
    const absl::string_view text = exception.what();
    return absl::InternalError(absl::StrCat(threw, ": ", text.substr(0, kMaxText)));
  } catch (...) {
    return absl::InternalError(threw);
  }
}

}  // namespace psd
