import { run } from "@torpor/base";

/**
 * Has the kernel forget the flows that it tracks from an address, by ctnetlink (linux/netfilter/nfnetlink_conntrack.h): reads
 * all of IPv4 (IPCTNL_MSG_CT_GET, 1) and deletes (IPCTNL_MSG_CT_DELETE, 2) those whose original tuple begins at the
 * address, naming the tuple as it was told. In Perl, since Node has no netlink, and Debian none without Perl.
 */
const FORGET = `
use strict; use warnings; use Socket;
my $from = inet_aton($ARGV[0]);
socket(my $netlink, 16, SOCK_RAW, 12) or die "netlink: $!"; # AF_NETLINK, NETLINK_NETFILTER
sub ask { my ($type, $flags, $attributes) = @_;
  my $body = pack("CCn", AF_INET, 0, 0) . $attributes;
  send($netlink, pack("LSSLL", 16 + length $body, 0x100 | $type, 1 | $flags, 1, 0) . $body, 0) // die "send: $!";
}
my (@found, $done);
ask(1, 0x300, ""); # NLM_F_DUMP
until ($done) {
  defined recv($netlink, my $answer, 1 << 20, 0) or die "dump: $!";
  while (length $answer >= 16) {
    my ($length, $type) = unpack("LS", $answer);
    my $message = substr($answer, 0, ($length + 3) & ~3, "");
    if ($type == 3) { $done = 1; last; } # NLMSG_DONE
    if ($type == 2) { # NLMSG_ERROR
      my $error = -unpack("x16l", $message);
      exit 0 if $error == 22; # a kernel without it tracks nothing, or lets nobody at it
      die "dump: errno $error";
    }
    next if index($message, $from) < 0; # nearly all of them
    my $attributes = substr($message, 20);
    while (length $attributes >= 4) {
      my ($size, $kind) = unpack("SS", $attributes);
      my $tuple = substr($attributes, 0, ($size + 3) & ~3, "");
      next unless ($kind & 0x3fff) == 1; # CTA_TUPLE_ORIG, in it CTA_TUPLE_IP, in it CTA_IP_V4_SRC.
      push @found, $tuple if substr($tuple, 12, 4) eq $from;
      last;
    }
  }
}
for my $tuple (@found) {
  ask(2, 4, $tuple); # NLM_F_ACK
  recv($netlink, my $answer, 1 << 16, 0) // die "recv: $!";
  my $error = -unpack("x16l", $answer);
  die "delete: errno $error" if $error && $error != 2; # gone by itself meanwhile
}
`;

/**
 * Forgets the flows from a slot's address in the host's own namespace, where they come in from outside: what is still sent to
 * them would reach whoever has the slot next.
 *
 * @throws when the kernel did not tell all of them, or kept one
 */
export async function forgetFlows(address: string): Promise<void> {
  await run(["perl", "-", address], { input: FORGET, timeoutMs: 20_000 });
}
