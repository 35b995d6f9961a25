// Package authority signs the certificates of a mesh.
//
// It owns the three kinds of authority behind one interface, Signer:
//
//   - built-in: a Root per mesh at the global control plane, and a ZoneSigner in each
//     zone with an intermediate of 90 days, which goes on while global is away;
//   - Provided: key and certificate that the operator gives, reloaded when they change;
//   - External: CertificateSigningRequest objects that another signer answers.
//
// Enter at NewRoot, ZoneSigner, Provided or External. The package never decides who may
// have which identity (package issue does), never stores a key itself (see Keeper), and
// has no way to take the key of a Root anywhere but into its sealed record.
package authority
