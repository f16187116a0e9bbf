//! Which certificate a name gets, and who a client is.

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;

use super::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("makes a key");
        let pem = params.self_signed(&key).expect("signs itself").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn certify(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("makes a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs").pem();
        Identity { certificates: certificate.into_bytes(), key: key.serialize_pem().into_bytes() }
    }
}

fn named(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).expect("are names")
}

fn certified(names: &[&str]) -> Certified {
    Certified::new(&Authority::new().certify(&named(names))).expect("is good")
}

#[test]
fn a_name_gets_its_certificate_before_a_wildcard_and_no_name_or_another_the_first() {
    let own = |hosts: &'static [&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
    let shown = [
        (certified(&["first.example"]), own(&[])),
        (certified(&["*.shop.example", "shop.example"]), own(&[])),
        (certified(&["PAY.shop.example", "shop.example"]), own(&[])),
        (certified(&["unseen.example"]), own(&["seen.example"])),
    ];
    let shown: Vec<(Certified, &[String])> =
        shown.iter().map(|(certified, hosts)| (certified.clone(), hosts.as_slice())).collect();
    let by_name = ByName::new(&shown).expect("has a first");
    let check = |asked: Option<&str>, place: usize| {
        assert!(Arc::ptr_eq(by_name.find(asked), &shown[place].0.key), "{asked:?}");
    };
    check(None, 0);
    check(Some("first.example"), 0);
    check(Some("other.example"), 0);
    check(Some("shop.example"), 1);
    check(Some("a.shop.example"), 1);
    check(Some("A.Shop.Example"), 1);
    check(Some("a.b.shop.example"), 0);
    check(Some("pay.shop.example"), 2);
    check(Some("seen.example"), 3);
    check(Some("unseen.example"), 0);
    assert!(ByName::new(&[]).is_err());
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let authority = Authority::new();
    let (one, other) = (authority.certify(&named(&["a.example"])), authority.certify(&named(&["a.example"])));
    let mixed = Identity { certificates: one.certificates.clone(), key: other.key };
    let error = Certified::new(&mixed).expect_err("do not belong together");
    assert!(error.to_string().contains("cannot be used together"), "{error}");
    let error = Certified::new(&Identity { certificates: Vec::new(), key: one.key }).expect_err("is empty");
    assert!(error.to_string().contains("no certificate"), "{error}");
    assert!(Authorities::new(b"").is_err() && Authorities::new(authority.pem.as_bytes()).is_ok());
}

fn subject_of(identity: &Identity) -> Option<[u8; 32]> {
    subject(&CertificateDer::from_pem_slice(&identity.certificates).expect("is PEM"))
}

/// A certificate of that common name, or of none, with these further names.
fn client(common: Option<&str>, names: &[SanType]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(common) = common {
        params.distinguished_name.push(DnType::CommonName, common);
    }
    params.subject_alt_names = names.to_vec();
    params
}

#[test]
fn who_a_client_is_survives_a_renewal_and_tells_clients_apart() {
    let uri = |text: &str| SanType::URI(text.try_into().expect("is a URI"));
    let dns = |text: &str| SanType::DnsName(text.try_into().expect("is a name"));
    let (authority, renewed) = (Authority::new(), Authority::new());
    let clients = [
        client(Some("acme"), &[]),
        client(Some("beta"), &[]),
        client(None, &[uri("spiffe://bank/acme"), dns("pod-1.example")]),
        client(None, &[uri("spiffe://bank/Acme")]),
        client(None, &[dns("acme")]),
        client(None, &[dns("acme"), dns("beta")]),
    ];
    let mut known = Vec::new();
    for params in &clients {
        let id = subject_of(&authority.certify(params)).expect("names somebody");
        // Another key, another serial number, another authority.
        assert_eq!(subject_of(&renewed.certify(params)), Some(id));
        assert!(!known.contains(&id), "{params:?}");
        known.push(id);
    }
    let moved = client(None, &[dns("pod-2.example"), uri("spiffe://bank/acme")]);
    assert_eq!(subject_of(&authority.certify(&moved)), Some(known[2]), "a URI says more than a host");
    assert_eq!(subject_of(&authority.certify(&client(None, &[]))), None);
}
