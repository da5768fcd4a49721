#include "core/base/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace psd {
namespace {

using ::testing::HasSubstr;

std::string Advertised(const std::string& bound, const std::string& advertise) {
  const absl::StatusOr<std::string> address = AdvertisedAddress(bound, advertise);
  return address.ok() ? *address : std::string(address.status().message());
}

TEST(HostPort, RefusesBadAddresses) {
  for (const char* address :
       {"7071", ":7071", "host", "host:", "host:65536", "host:-1", "host:1x", "[::1:5", "::1:5",
        "a b:5", "host:99999999999999999999", "[]:5", "a\nb:5"})
    EXPECT_FALSE(ParseHostPort(address).ok()) << address;
}

TEST(HostPort, PortZeroCanBeListenedOnAndNotDialled) {
  EXPECT_TRUE(ParseHostPort("host:0").ok());
  const absl::Status refused = ParseHostPortToDial("host:0").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("not 0, got 'host:0'"));
  EXPECT_FALSE(ParseHostPortToDial("host").ok());
  EXPECT_EQ(ParseHostPortToDial("host:7071")->port, 7071);
}

TEST(HostPort, AHostIsAsLongAsADomainNameMayBe) {
  EXPECT_TRUE(ParseHostPort(std::string(kMaxHostBytes, 'a') + ":5").ok());
  const absl::Status refused = ParseHostPort(std::string(kMaxHostBytes + 1, 'a') + ":5").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 253 bytes"));
}

TEST(HostPort, ReadsBackToTheSame) {
  for (const char* address : {"[fe80::1%eth0]:5", "127.0.0.1:0", "psd-0.psd:7071"}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), address);
  }
  EXPECT_EQ(ParseHostPort("[fe80::1%eth0]:5")->host, "fe80::1%eth0");
  EXPECT_EQ(ParseHostPort("[fe80::1%eth0]:5")->port, 5);
}

TEST(HostPort, KnowsLoopbackAndAllInterfaces) {
  for (const char* address : {"127.0.0.1:0", "127.8.9.1:1", "localhost:7071", "[::1]:7071"}) {
    EXPECT_TRUE(ParseHostPort(address)->IsLoopback()) << address;
    EXPECT_FALSE(NeedsAdvertise(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0:7071", "[::]:5", "0:1", "[0:0:0:0:0:0:0:0]:1", "0x0:1", "00.0x0:1",
        "[::ffff:0.0.0.0]:1", "[::ffff:0:0%eth0]:1", "[::0.0.0.0]:1"}) {
    EXPECT_FALSE(ParseHostPort(address)->IsLoopback()) << address;
    EXPECT_TRUE(NeedsAdvertise(address)) << address;
  }
  EXPECT_FALSE(NeedsAdvertise("10.0.0.5:7071"));
  EXPECT_FALSE(NeedsAdvertise("[::2]:7071"));
  EXPECT_FALSE(NeedsAdvertise("[::ffff:10.0.0.5]:7071"));
  EXPECT_FALSE(NeedsAdvertise("0x0.example:7071"));
}

TEST(AdvertisedAddress, TakesThePortThatIsListenedOnUnlessItNamesOne) {
  EXPECT_EQ(Advertised("0.0.0.0:7071", "psd-0.psd"), "psd-0.psd:7071");
  EXPECT_EQ(Advertised("0.0.0.0:7071", "10.0.0.5:80"), "10.0.0.5:80");
  EXPECT_EQ(Advertised("[::]:7071", "[fe80::1]"), "[fe80::1]:7071");
  EXPECT_EQ(Advertised("127.0.0.1:7071", ""), "127.0.0.1:7071");
}

TEST(AdvertisedAddress, MustBeOneThatOthersCanDial) {
  EXPECT_THAT(Advertised("0.0.0.0:7071", "0.0.0.0"), HasSubstr("names all interfaces"));
  EXPECT_THAT(Advertised("0.0.0.0:7071", "[::]:1"), HasSubstr("names all interfaces"));
  EXPECT_THAT(Advertised("0.0.0.0:7071", "host:0"), HasSubstr("a port that others can dial"));
  EXPECT_THAT(Advertised("0.0.0.0:7071", "a b"), HasSubstr("expected host or host:port"));
}

}  // namespace
}  // namespace psd
